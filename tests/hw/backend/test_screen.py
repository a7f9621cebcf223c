"""A screened head chooses what the whole head chooses: by proof, on real states, and natively."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from edgerun.backends import CompileOptions, Shape, make_backend
from edgerun.env import settings
from edgerun.formats.base import PackedWeight
from edgerun.graph.ir import Graph, Node
from edgerun.llm.llm import load
from edgerun.model.bundle import open_bundle
from edgerun.ops.linear import quantize_block, quantize_row
from edgerun.plan.states import states_of
from edgerun.state import Adjustment, Batch, SequenceStore, same_attention
from edgerun_hw.backend import FpgaBackend
from edgerun_hw.backend.matrix import integers_of
from edgerun_hw.backend.native import placement
from edgerun_hw.backend.screen import Screen, adjusted, leading, make_screen, values_of
from edgerun_hw.devices.native.port import NativePort
from edgerun_hw.overlay.driver import Tlmm
from edgerun_hw.overlay.geometry import PRESETS
from edgerun_hw.simulate.board.dev import CLOCK_HZ, EmulatedKernel
from edgerun_hw.simulate.fake import FakeDevice
from tests.hw.support.overlays import normal, random_weight, replace_fake
from tests.support.bundles import SMALL_MODEL

SPEC = same_attention(1, 1, 16)
CONTEXT = 128
BASE = 0xA000_0000


def default_head() -> tuple[Graph, Node, PackedWeight]:
    graph = open_bundle(SMALL_MODEL).graph
    node = graph.nodes[-1]
    weight = graph.constants[node.inputs[1]]
    assert isinstance(weight, PackedWeight)
    return graph, node, weight


def activations(weight: PackedWeight, x: NDArray[np.float32]) -> tuple[np.ndarray, ...]:
    """Codes and scales by block, and both forms of activations as they count."""
    codes, scales = quantize_block(x, weight.block)
    wide = codes.reshape(len(x), -1, weight.block).astype(np.float64) * scales[..., None]
    rows, row_scale = quantize_row(x)
    return codes, scales, wide.reshape(len(x), -1), rows * row_scale[:, None].astype(np.float64)


def exact_logits(
    weight: PackedWeight, codes: np.ndarray, scales: np.ndarray
) -> NDArray[np.float32]:
    """What the whole head computes, in its order of float32 operations."""
    integers = integers_of(weight, 0, weight.shape[0]).astype(np.float64)  # exact sums by BLAS
    out = np.zeros((len(codes), weight.shape[0]), np.float32)
    for block in range(weight.blocks):
        part = slice(block * weight.block, (block + 1) * weight.block)
        sums = codes[:, part].astype(np.float64) @ integers[:, part].T
        scale = weight.scales[:, block] * scales[:, block, None]
        out += sums.astype(np.float32) * scale
    return out


def screened_products(screen: Screen, y: NDArray[np.float64]) -> NDArray[np.float32]:
    n = screen.weight.shape[0]
    return (y @ values_of(screen.weight, 0, n).T.astype(np.float64)).astype(np.float32)


@pytest.mark.parametrize("levels", [1, 5, 13])
def test_no_logit_is_above_its_bound(levels):
    rng = np.random.default_rng(levels)
    weight = random_weight(rng, "int8", (300, 128), 32)
    screen = make_screen(weight, levels)
    codes = integers_of(screen.weight, 0, 300)
    assert np.abs(codes).max() == levels == screen.levels
    x = normal(rng, 40, 128) * rng.exponential(1, (1, 128)).astype(np.float32)
    codes, scales, exact_x, screened_x = activations(weight, x)
    logits = exact_logits(weight, codes, scales)
    norms = np.linalg.norm(exact_x, axis=1), np.linalg.norm(exact_x - screened_x, axis=1)
    bounds = screened_products(screen, screened_x)
    bounds = bounds + np.outer(norms[0], screen.errors) + np.outer(norms[1], screen.norms)
    assert (logits <= bounds).all()
    # And one that lies along the screen's error comes close to it.
    errors = values_of(weight, 0, 300) - values_of(screen.weight, 0, 300)
    codes, scales, exact_x, screened_x = activations(weight, errors)
    own = np.einsum("nn->n", exact_logits(weight, codes, scales))
    products = np.einsum("nn->n", screened_products(screen, screened_x))
    bounds = products + screen.errors * np.linalg.norm(exact_x, axis=1)
    assert (own > products + 0.9 * (bounds - products)).mean() > 0.9
    bounds += screen.norms * np.linalg.norm(exact_x - screened_x, axis=1)
    assert (own <= bounds).all()


def test_equal_logits_are_all_found():
    rng = np.random.default_rng(1)
    weight = random_weight(rng, "int8", (64, 128), 32)
    twice = replace(
        weight,
        shape=(128, 128),
        codes=np.concatenate([weight.codes] * 2),
        scales=np.concatenate([weight.scales] * 2),
    )
    screen = make_screen(twice)
    codes, scales, exact_x, screened_x = activations(twice, normal(rng, 20, 128))
    logits = exact_logits(twice, codes, scales)
    products = screened_products(screen, screened_x)
    for row in range(20):
        chosen = leading(screen, products[row], exact_x[row], screened_x[row], logits[row])
        best = np.flatnonzero(logits[row] == logits[row].max())
        assert chosen[best].all() and len(best) == 2 and chosen.sum() < 64


def random_adjustment(rng: np.random.Generator, n: int) -> Adjustment:
    """Penalties of any strength on some ids, rewards among them."""
    ids = np.sort(rng.choice(n, int(rng.integers(1, n)), replace=False))
    divisors = np.exp(rng.normal(0, 1.5, len(ids))).astype(np.float32)
    return Adjustment(ids, divisors, rng.normal(0, 4, len(ids)).astype(np.float32))


@pytest.mark.parametrize("seed", range(6))
def test_ids_with_penalties_are_the_whole_heads(seed):
    """Of random heads, some with equal rows; the largest adjusted logits are all multiplied."""
    rng = np.random.default_rng(seed)
    weight = random_weight(rng, "int8", (160, 128), 32)
    weight.codes[80:90], weight.scales[80:90] = weight.codes[:10], weight.scales[:10]
    screen = make_screen(weight)
    codes, scales, exact_x, screened_x = activations(weight, 3 * normal(rng, 60, 128))
    logits, products = exact_logits(weight, codes, scales), screened_products(screen, screened_x)
    multiplied = 0
    for row, exact in enumerate(logits):
        adjustment = random_adjustment(rng, 160)
        chosen = leading(screen, products[row], exact_x[row], screened_x[row], exact, adjustment)
        divisors, amounts = np.ones(160, np.float32), np.zeros(160, np.float32)
        divisors[adjustment.ids], amounts[adjustment.ids] = adjustment.divisors, adjustment.amounts
        whole = adjusted(exact, divisors, amounts)
        assert chosen[whole == whole.max()].all()
        left = adjusted(np.where(chosen, exact, -np.inf).astype(np.float32), divisors, amounts)
        assert left.argmax() == whole.argmax()
        multiplied += int(chosen.sum())
    assert multiplied < 60 * 80


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_what_is_no_number_excludes_nothing(value):
    rng = np.random.default_rng(2)
    weight = random_weight(rng, "int8", (64, 128), 32)
    screen, x = make_screen(weight), np.ones(128)
    logits = np.zeros(64, np.float32)
    assert leading(screen, np.zeros(64, np.float32), x * value, x, logits).all()
    assert leading(screen, np.full(64, value, np.float32), x, x, logits).all()


def recorded_states(text: str, count: int) -> NDArray[np.float32]:
    """What the small model's head reads, behind every token of a text, ``[count, K]``."""
    bundle = open_bundle(SMALL_MODEL)
    graph, config = bundle.graph, bundle.config
    name = graph.nodes[-1].inputs[0]
    body = replace(graph, outputs=[name]).with_nodes(graph.nodes[:-1])
    spec = states_of(graph, config, "fp32")
    with load(SMALL_MODEL, backend="cpu") as llm:
        ids = list(llm.tokenizer.encode(text[: 16 * count]))
    cpu = make_backend("cpu")
    program = cpu.compile(body, Shape.of(CONTEXT), CompileOptions(spec))
    rows: list[np.ndarray] = []
    for first in range(0, count, CONTEXT):
        store = SequenceStore(spec, 2 * CONTEXT, 1)
        sequence = store.open()
        store.reserve(sequence, CONTEXT)
        part = [config.bos_token_id, *ids[first : first + CONTEXT - 1]]
        batch = Batch.of(part, 0, sequence, logits="all")
        rows.append(program(batch, store)[name].copy())
    program.close()
    cpu.close()
    return np.concatenate(rows)[:count]


@pytest.mark.parametrize("count", [1000, pytest.param(10_000, marks=pytest.mark.slow)])
def test_ids_of_recorded_states_are_the_whole_heads(shared_data: Path, count: int) -> None:
    """The small model behind every token of held-out stories."""
    text = (shared_data / "corpora/tinystories/valid.txt").read_text().replace("<|endoftext|>", "")
    x = recorded_states(text, count)
    _, _, weight = default_head()
    screen = make_screen(weight)
    rescored = []
    for part in np.array_split(x, count // 250):
        codes, scales, exact_x, screened_x = activations(weight, part)
        logits = exact_logits(weight, codes, scales)
        products = screened_products(screen, screened_x)
        for row, exact in enumerate(logits):
            chosen = leading(screen, products[row], exact_x[row], screened_x[row], exact)
            assert np.where(chosen, exact, -np.inf).argmax() == exact.argmax()
            rescored.append(int(chosen.sum()))
    assert len(rescored) == count
    assert np.mean(rescored) < 8 and np.percentile(rescored, 99) < 64


# ---- natively


@pytest.fixture
def on_device(tmp_path: Path, monkeypatch) -> FpgaBackend:
    """The back-end on emulated device files, over a device in software."""
    logic = FakeDevice(PRESETS["prefill-1500"], memory_bytes=64 << 20, coherent=True)
    kernel = EmulatedKernel(tmp_path, logic, BASE, 32 << 20)
    replace_fake(monkeypatch, lambda: Tlmm(NativePort(kernel, BASE, CLOCK_HZ, "udmabuf0")))
    backend = FpgaBackend()
    backend.use_device("fake")
    return backend


def after(adjustment: Adjustment | None, logits: NDArray[np.float32]) -> NDArray[np.float32]:
    """Logits as they are compared."""
    if adjustment is None:
        return logits
    result, ids = logits.copy(), adjustment.ids
    result[ids] = adjusted(logits[ids], adjustment.divisors, adjustment.amounts)
    return result


def test_native_code_multiplies_what_the_definition_says(on_device: FpgaBackend) -> None:
    graph, node, weight = default_head()
    name = node.inputs[0]
    head = replace(graph, inputs=[name]).with_nodes([node])
    x = normal(np.random.default_rng(5), 6, weight.shape[1])
    x[2:4] = values_of(weight, 77, 78)  # whose largest is clear, at least without penalties
    x[4, 0] = 1e30
    executable = on_device.compile(head, Shape.of(6), CompileOptions(SPEC))
    batch, cache = Batch.of(list(range(6)), 0, 0, logits="all"), SequenceStore(SPEC, 64)
    whole = executable(batch, cache, {name: x})["logits"].copy()
    rng = np.random.default_rng(6)
    adjustments = tuple(
        random_adjustment(rng, weight.shape[0]) if row % 2 else None for row in range(6)
    )
    makers = tuple(None if each is None else partial(replace, each) for each in adjustments)
    greedy = replace(batch, largest_only=True, adjustments=makers)
    best = executable(greedy, cache, {name: x})["logits"].copy()
    codes, scales, exact_x, screened_x = activations(weight, x)
    np.testing.assert_array_equal(whole, exact_logits(weight, codes, scales))
    for row, adjustment in enumerate(adjustments):
        both = [after(adjustment, logits[row]).argmax() for logits in (best, whole)]
        assert both[0] == both[1]
    multiplied = np.isfinite(best)
    np.testing.assert_array_equal(best[multiplied], whole[multiplied])
    screen = make_screen(weight)
    products = screened_products(screen, screened_x)
    for row in range(6):
        chosen = leading(
            screen, products[row], exact_x[row], screened_x[row], whole[row], adjustments[row]
        )
        assert multiplied[row].sum() == pytest.approx(chosen.sum(), abs=2)  # rounding at the bound
    assert multiplied[2].sum() < 10 < multiplied.sum()
    assert on_device._session is not None
    assert list(on_device._session.screened) == [6, multiplied.sum()]
    executable.close()
    on_device.close()


def test_native_code_excludes_nothing_where_something_is_no_number(on_device: FpgaBackend) -> None:
    graph, node, weight = default_head()
    name = node.inputs[0]
    head = replace(graph, inputs=[name]).with_nodes([node])
    executable = on_device.compile(head, Shape.of(1), CompileOptions(SPEC))
    batch = Batch.of([1], 0, 0, logits="all")
    x = np.full((1, weight.shape[1]), np.inf, np.float32)
    logits = [
        executable(replace(batch, largest_only=largest), SequenceStore(SPEC, 64), {name: x})[
            "logits"
        ].copy()
        for largest in (False, True)
    ]
    np.testing.assert_array_equal(*logits)
    executable.close()
    on_device.close()


@pytest.mark.parametrize(
    "sampling",
    [
        {},
        {"repetition_penalty": 1.3, "presence_penalty": -0.5, "frequency_penalty": 1.5},
        {"logit_bias": {5: 1.0}},
    ],
)
def test_greedy_tokens_are_the_cpus_with_or_without_a_screen(
    on_device: FpgaBackend, sampling: dict[str, object]
) -> None:
    """Penalties are in the bounds; a bias is not, so the head is multiplied whole for it."""
    on_device.close()
    options = {"max_tokens": 6, "temperature": 0.0, **sampling}
    with load(SMALL_MODEL, backend="cpu") as llm:
        expected = llm.generate("Once upon a time", **options).ids
    with load(SMALL_MODEL, backend="fpga", device="fake") as llm:
        assert llm.generate("Once upon a time", **options).ids == expected
        (report,) = llm.reports()
    assert any("excluded the others" in note for note in report.notes) == (
        "logit_bias" not in sampling
    )


def test_validation_compares_all_logits(on_device: FpgaBackend, monkeypatch) -> None:
    monkeypatch.setattr(placement, "settings", lambda: replace(settings(), validate=True))
    graph, node, weight = default_head()
    name = node.inputs[0]
    head = replace(graph, inputs=[name]).with_nodes([node])
    executable = on_device.compile(head, Shape.of(1), CompileOptions(SPEC))
    batch = replace(Batch.of([1], 0, 0), largest_only=True)
    x = normal(np.random.default_rng(0), 1, weight.shape[1])
    logits = executable(batch, SequenceStore(SPEC, 64), {name: x})["logits"]
    assert np.isfinite(logits).all()
    executable.close()
    on_device.close()
