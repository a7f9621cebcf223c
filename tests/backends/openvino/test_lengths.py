"""Shapes of networks are static: prompts, pasts, heads and windows that do not fill them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from edgerun.backends import CompileOptions, Shape
from edgerun.backends.base import Phase
from edgerun.backends.openvino.devices import find_device
from edgerun.backends.openvino.executable import OpenvinoExecutable
from edgerun.backends.openvino.pieces import PAST, PAST_STEP, ROWS
from edgerun.backends.openvino.session import Session
from edgerun.backends.reference import ReferenceExecutable
from edgerun.errors import BackendError
from edgerun.graph.ir import Graph, Node, ValueShape
from edgerun.state import AttentionState, Batch, SequenceStore
from edgerun.state.spec import attention_name
from edgerun_export.pipeline import ExportOptions, export
from tests.backends.openvino.conftest import Altered, Placed, placed
from tests.backends.openvino.test_places import PLACES, ids_of
from tests.export.test_odd_shapes import odd_checkpoint
from tests.support.bundles import bundle_of, error_of

pytest.importorskip("openvino")

CONTEXT = 1300
IDS = np.resize(ids_of("llama"), CONTEXT).astype(np.int32)
CHUNKS = ROWS[Phase.PREFILL]
PASTS = (PAST, PAST * PAST_STEP)
# Of the range of logits: rows of one call see each other as computed, later ones as stored.
BOUNDS = {"fp32": 1e-5, "fp16": 1e-3, "int8": 2e-2}


def around(*sizes: int) -> list[int]:
    """Each size, and up to two more and less, as far as the context goes."""
    return sorted({size + more for size in sizes for more in range(-2, 3)})


def test_sizes_are_those_that_were_meant() -> None:
    assert (CHUNKS, PASTS) == ((64, 256, 1024), (256, 1024))


def fill(model: Placed, store: SequenceStore, slot: int, length: int, rows: int = 256) -> None:
    """Computes a sequence up to so many tokens, in calls of so many rows."""
    for at in range(store.length(slot), length, rows):
        part = IDS[at : min(at + rows, length)]
        model.run(store, Batch.of(part, at, slot, logits="none"))


def sizes_of(model: Placed) -> tuple[set[int], set[int]]:
    """Rows, and room for the past, of the networks that ran."""
    reports = [backend.report() for backend in model.backends]
    names = [str(row["network"]).split() for report in reports if report for row in report.rows]
    return {int(name[0]) for name in names}, {int(name[-2]) for name in names}


@pytest.mark.parametrize(
    ("rows", "kv_cache", "sizes"),
    [
        (256, "fp32", CHUNKS),
        (1024, "fp32", CHUNKS),
        (100, "fp32", CHUNKS[:2]),
        (512, "fp32", CHUNKS[:2]),
        (256, "fp16", CHUNKS[:2]),
        (256, "int8", CHUNKS[:2]),
    ],
)
def test_prompts_of_all_lengths_around_those_of_networks(
    rows: int, kv_cache: str, sizes: tuple[int, ...]
) -> None:
    lengths = [17, 320, 511, 513, *around(*sizes), *range(CONTEXT - 3, CONTEXT)]
    folder = bundle_of("llama", weights="fp32")
    with (
        placed(folder, "prefill=cpu", kv_cache=kv_cache, context=CONTEXT, rows=rows) as cpu,
        placed(folder, PLACES[0], kv_cache=kv_cache, context=CONTEXT, rows=rows) as model,
    ):
        for length in lengths:
            logits = []
            for each in (cpu, model):
                store = each.store()
                slot = store.open()
                fill(each, store, slot, length, rows)
                logits.append(each.run(store, Batch.of(IDS[length : length + 1], length, slot)))
            assert error_of(logits[1], logits[0]) <= BOUNDS[kv_cache], length
        assert sizes_of(model)[0] == {each for each in CHUNKS if each < 2 * rows}


@pytest.mark.parametrize("place", PLACES)
def test_calls_that_begin_around_the_room_for_the_past(place: str) -> None:
    """Single rows where the device decodes, else 70; up to the last token of the context."""
    rows = 1 if "decode" in place else 70
    folder = bundle_of("llama", weights="fp32")
    with (
        placed(folder, "prefill=cpu", context=CONTEXT) as cpu,
        placed(folder, place, context=CONTEXT) as model,
    ):
        store = cpu.store()
        slot = store.open()
        for start in [*around(*PASTS), *range(CONTEXT - rows - 2, CONTEXT - rows + 1)]:
            fill(cpu, store, slot, start)
            computed = []
            for each in (cpu, model):
                batch = Batch.of(
                    IDS[start : start + rows], start, slot, logits="last" if rows == 1 else "none"
                )
                logits = each.run(store, batch)
                blocks = [store.read_block(s.name, slot, start, start + rows) for s in store.states]
                computed.append([logits] * (rows == 1) + [part for both in blocks for part in both])
                store.rewind(slot, start)
            for theirs, ours in zip(*computed, strict=True):
                assert error_of(ours, theirs) <= 1e-5, start
        assert sizes_of(model)[1] == {*PASTS, CONTEXT}


@pytest.mark.parametrize(("weights", "place"), [("fp32", PLACES[0]), ("int4", PLACES[1])])
def test_widths_that_fit_nothing(weights: str, place: str, tmp_path: Path) -> None:
    """Heads of 12, matrices of 85 rows and of 267, which are no whole number of blocks."""
    folder = tmp_path / "bundle"
    options = ExportOptions(weights=weights, activations="fp32" if weights == "int4" else None)
    export(odd_checkpoint("llama", tmp_path / "checkpoint"), folder, options)
    computed = []
    for each in ("prefill=cpu", place):
        with placed(folder, each, context=100) as model:
            store = model.store()
            slot = store.open()
            model.run(store, Batch.of(IDS[:70] % 256, 0, slot, logits="none"))
            computed.append(model.run(store, Batch.of([7], 70, slot)))
    assert error_of(computed[1], computed[0]) <= 1e-5


def attention_graph(head_dim: int, window: int) -> Graph:
    """A layer of four heads that share two heads of keys and values."""
    sizes = {"num_heads": 4, "num_kv_heads": 2, "head_dim": head_dim}
    scores = {"scale": head_dim**-0.5, "window": window, "softcap": 0.0}
    attributes = {"layer": 0, **sizes, **scores}
    node = Node("attention", "a", ("q", "k", "v"), ("out",), attributes)
    widths = {"q": 4 * head_dim, "k": 2 * head_dim, "v": 2 * head_dim}
    shapes = {name: ValueShape(width) for name, width in widths.items()}
    return Graph([node], list(shapes), ["out"], {}, shapes=shapes)


@pytest.mark.parametrize("rows", [1, 70])
@pytest.mark.parametrize(
    ("device_name", "head_dim", "window", "bound"),
    [
        ("CPU", 7, 0, 1e-5),
        ("CPU", 1, 0, 1e-5),
        ("CPU", 80, 5, 1e-5),
        ("CPU", 16, 63, 1e-5),
        ("CPU", 16, 64, 1e-5),
        ("NPUW-CPU", 16, 63, 5e-3),
    ],
)
def test_odd_heads_and_windows_smaller_than_a_call(
    device_name: str, head_dim: int, window: int, bound: float, rows: int
) -> None:
    """A mask as wide as a call would let rows see what their window has passed.

    Keys and values go in and come out as they are, which the NPU's partitioner cannot do.
    """
    graph = attention_graph(head_dim, window)
    state = AttentionState(attention_name(0), 2, head_dim, head_dim, window, "fp32")
    options = CompileOptions((state,), fallback=lambda segment, shape: ReferenceExecutable(segment))
    session = Session(find_device(device_name), threads=1)
    device = OpenvinoExecutable(graph, Shape.of(rows), session, options)
    outputs: dict[str, list[NDArray[np.float32]]] = {"device": [], "definition": []}
    blocks = []
    for name, executable in (("device", device), ("definition", ReferenceExecutable(graph))):
        rng = np.random.default_rng(rows)
        store = SequenceStore((state,), 700)
        slot = store.open()
        for start in range(0, 2 * rows, rows):
            values = {
                each: rng.standard_normal((rows, shape.width)).astype(np.float32)
                for each, shape in graph.shapes.items()
                if each in graph.inputs
            }
            store.reserve(slot, start + rows)
            batch = Batch.of([0] * rows, start, slot, logits="none")
            outputs[name].append(executable(batch, store, values)["out"].copy())
            store.commit(slot, start + rows)
        blocks.append(np.stack(store.read_block(state.name, slot, 0, 2 * rows)))
    assert not session.failure
    assert np.array_equal(*blocks)
    ours, theirs = (np.concatenate(parts) for parts in outputs.values())
    assert error_of(ours, theirs) <= bound


def sharing_graph(window: int) -> Graph:
    """A layer's attention, and attention to what an earlier network has computed of another."""
    own = attention_graph(16, window)
    (node,) = own.nodes
    shared = Node("shared_attention", "b", ("q",), ("other",), {**node.attrs, "layer": 1})
    return Graph([node, shared], own.inputs, ["out", "other"], {}, shapes=own.shapes)


@pytest.mark.parametrize("factor", [1, 2])
def test_one_window_over_keys_of_this_network_and_of_an_earlier_one(
    factor: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    states = tuple(
        AttentionState(attention_name(layer), 2, 16, 16, 5, "fp32") for layer in range(2)
    )
    graph, session = sharing_graph(5), Session(find_device("CPU"), threads=1)
    options = CompileOptions(states, fallback=lambda segment, shape: ReferenceExecutable(segment))
    compile_ = session.compile

    def alter(inputs: list[NDArray[np.float32]], outputs: list[NDArray[np.float32]]) -> Any:
        return [outputs[0], outputs[1] * np.float32(factor), *outputs[2:]]

    monkeypatch.setattr(session, "compile", lambda *args: Altered(compile_(*args), alter))
    if factor != 1:  # of numbers that are all zero, nobody would see it
        with pytest.raises(BackendError, match=r"other differ by 1 of their size"):
            OpenvinoExecutable(graph, Shape.of(70), session, options)
        return
    device, outputs = OpenvinoExecutable(graph, Shape.of(70), session, options), []
    for executable in (device, ReferenceExecutable(graph)):
        rng, store = np.random.default_rng(1), SequenceStore(states, 700)
        slot = store.open()
        for start in (0, 70):
            values = {
                name: rng.standard_normal((70, graph.shapes[name].width)).astype(np.float32)
                for name in graph.inputs
            }
            block = tuple(rng.standard_normal((70, 2, 16)).astype(np.float32) for _ in range(2))
            store.reserve(slot, start + 70)
            store.write_block(states[1].name, slot, start, (block[0], block[1]))
            batch = Batch.of([0] * 70, start, slot, logits="none")
            outputs.append(executable(batch, store, values)["other"].copy())
            store.commit(slot, start + 70)
    assert not session.failure
    assert error_of(np.concatenate(outputs[:2]), np.concatenate(outputs[2:])) <= 1e-5


@pytest.mark.parametrize("place", PLACES)
def test_a_call_of_no_rows(place: str) -> None:
    with placed(bundle_of("llama", weights="fp32"), place) as model:
        store = model.store()
        slot = store.open()
        assert model.run(store, Batch.of([], 0, slot, logits="none")).shape[0] == 0
        fill(model, store, slot, 20)
        assert model.run(store, Batch.of([], 20, slot, logits="all")).shape[0] == 0
        assert store.length(slot) == 20
