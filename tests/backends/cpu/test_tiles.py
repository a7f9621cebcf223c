"""Prompts by the matrix unit, modelled: what is around its products, on any machine."""

from __future__ import annotations

import threading

import numpy as np
import pytest
from numpy.typing import NDArray

from edgerun.backends import CompileOptions, Shape, make_backend
from edgerun.backends.cpu import strips
from edgerun.backends.cpu.families import AMX
from edgerun.backends.cpu.strips import StripMemory
from edgerun.graph.ir import Graph, Node
from edgerun.kernels import isa as isa_module
from edgerun.kernels.lang.isa import MODELS
from edgerun.kernels.layouts.tile_order import STRIP_BYTES, area_bytes, strip_panels
from edgerun.plan.calibration.loads import random_weight
from edgerun.state import Batch, SequenceStore, same_attention
from tests.backends.test_chunks import GATED_FORMS, ROWS, K, gate_graph, product
from tests.backends.test_experts import K as EXPERT_K
from tests.backends.test_experts import layer as layer_of_experts
from tests.backends.test_experts import random_routes

SPEC = same_attention(1, 1, 16, "fp32")
F32 = NDArray[np.float32]
L2_BYTES = 2 << 20


@pytest.fixture(autouse=True)
def modelled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(isa_module, "selected_isa", lambda: MODELS["amx_model"])


def rows_of(seed: int = 2, rows: int = ROWS) -> F32:
    return np.random.default_rng(seed).standard_normal((rows, K)).astype(np.float32)


@pytest.mark.parametrize(
    ("activations", "weights"),
    [("int8_block", "int4"), ("int8_row", "ternary"), ("int8_row", "trits")],
)
def test_a_prompt_has_the_bits_of_its_rows(activations: str, weights: str) -> None:
    x, trits = rows_of(), weights == "trits"
    weight = random_weight(weights, (K, 70), 3)
    alone = product(weight, activations, x, 1, trits)
    for chunk in (17, 31, 33, ROWS):
        np.testing.assert_array_equal(product(weight, activations, x, chunk, trits), alone)


def run(graph: Graph, x: F32, threads: int = 1) -> tuple[F32, tuple[str, ...], int]:
    """Output of a prompt, the paths it takes, and how many instructions the program has."""
    backend = make_backend("cpu", given={"threads": threads})
    program = backend.compile(graph, Shape.of(len(x)), CompileOptions(SPEC))
    batch = Batch.of([0] * len(x), 0, 0, logits="none")
    output = program(batch, SequenceStore(SPEC, len(x)), {"x": x})["y"].copy()
    launches = program.launches
    program.close()
    backend.close()
    return output, launches.paths, launches.instructions


@pytest.mark.parametrize("form", GATED_FORMS[::2], ids=str)
def test_gate_and_up_are_packed_and_multiplied_together(form: tuple[str, str]) -> None:
    x = rows_of(rows=24)
    together, paths, count = run(gate_graph(form, ["y"], biases=True), x)
    apart, _, more = run(gate_graph(form, ["y", "a"], biases=True), x)
    np.testing.assert_array_equal(together, apart)
    is_int8 = form[0] != "float"
    assert (AMX in paths) == is_int8
    # Two kernels for blocks of rows, two for those left over and the gate become two; both
    # projections read the same packed rows.
    assert more - count == 3 * is_int8


def layer(k: int = K) -> Graph:
    node = Node("linear", "layer", ("x", "w"), ("y",), {"activations": "int8_row"})
    return Graph([node], ["x"], ["y"], {"w": random_weight("ternary", (k, 70), 3)})


def test_without_memory_for_strips_prompts_go_on_and_it_is_said_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    x, expected = rows_of(), run(layer(), rows_of())[0]
    monkeypatch.setattr(strips, "zeroed_memory", refused)
    output, paths, _ = run(layer(), x)
    np.testing.assert_array_equal(output, expected)
    assert AMX not in paths
    memory = StripMemory(2)
    assert memory.for_graph(layer()) is None
    assert memory.for_graph(layer()) is None
    messages = [record.getMessage() for record in caplog.records]
    assert len(messages) == 2  # of two teams
    assert all("unpacked weights a thread" in message for message in messages)


@pytest.mark.parametrize("form", [("int8_block", "int4_asym"), ("int8_row", "ternary")], ids=str)
def test_rows_of_an_expert_go_through_tiles_where_there_is_memory_for_strips(
    form: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the same bits: of 60 rows that go to two of five experts some fill tiles."""
    graph, rows = layer_of_experts(*form, 5, 2), 60
    rng = np.random.default_rng(1)
    x = rng.standard_normal((rows, EXPERT_K)).astype(np.float32)
    routes = random_routes(rng, rows, 5, 2)
    tiles, used = run_experts(graph, x, routes)
    monkeypatch.setattr(strips, "zeroed_memory", refused)
    turns, unused = run_experts(graph, x, routes)
    np.testing.assert_array_equal(tiles, turns)
    assert (AMX in used, AMX in unused) == (True, False)
    alone = [run_experts(graph, x[row : row + 1], routes[row : row + 1])[0] for row in range(9)]
    np.testing.assert_array_equal(tiles[:9], np.concatenate(alone))


def run_experts(graph: Graph, x: F32, routes: F32) -> tuple[F32, tuple[str, ...]]:
    """Output of a layer of experts, and the paths that it takes."""
    backend = make_backend("cpu", given={"threads": 2})
    program = backend.compile(graph, Shape.of(len(x)), CompileOptions(SPEC))
    batch = Batch.of([0] * len(x), 0, 0, logits="none")
    values = program(batch, SequenceStore(SPEC, len(x)), {"x": x, "routes": routes})
    output, paths = values["out"].copy(), program.launches.paths
    program.close()
    backend.close()
    return output, paths


def refused(size: int) -> None:
    raise MemoryError


def test_programs_of_a_team_share_memory_that_grows() -> None:
    memory, long = StripMemory(3), layer(60_000)
    first = memory.for_graph(layer())
    assert first is not None
    assert memory.for_graph(layer()) is first
    second = memory.for_graph(long)
    assert second is not None
    assert memory.for_graph(layer()) is second
    assert len(second.memory) == len(second.taken) == 3
    assert second.memory.shape[1] >= area_bytes(60_160, 60_160 // 16, packed=False)
    assert second.taken.ctypes.data % 8 == 0


@pytest.mark.parametrize(
    ("lengths", "block"),
    [((7168, 7232), 32), ((7168, 8192), 32), ((9536,), 64), ((9504,), 32), ((14_336, 14_400), 16)],
)
def test_areas_have_room_for_every_row_of_a_graph(lengths: tuple[int, ...], block: int) -> None:
    weights = {f"w{k}": random_weight("int4", (k, 16), 3) for k in lengths}
    areas = StripMemory(1).for_graph(Graph([], ["x"], [], dict(weights)))
    assert areas is not None
    assert areas.memory.shape[1] >= max(area_bytes(k, k // block, packed=False) for k in lengths)


@pytest.mark.parametrize("k", [64, 2560, 6912, 7168, 14_336, 28_672, 60_000])
def test_a_strip_fits_the_second_cache_or_is_a_pair_of_panels(k: int) -> None:
    panels = strip_panels(k)
    assert panels % 2 == 0
    assert panels == 2 or panels * 16 * k <= STRIP_BYTES < L2_BYTES
    assert panels == 8 or (panels + 2) * 16 * k > STRIP_BYTES


def test_two_programs_at_a_time_do_not_disturb_each_other() -> None:
    inputs = [rows_of(seed) for seed in (1, 2)]
    expected = [run(layer(), x)[0] for x in inputs]
    outputs: list[F32 | None] = [None, None]

    def work(index: int) -> None:
        for _ in range(3):
            outputs[index] = run(layer(), inputs[index], threads=2)[0]

    threads = [threading.Thread(target=work, args=(index,)) for index in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    np.testing.assert_array_equal(outputs, expected)
