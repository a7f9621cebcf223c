"""Layers of experts on the CPU: each row exactly once through each of its experts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from numpy.typing import NDArray

from edgerun.backends import CompileOptions, Shape, make_backend
from edgerun.backends.base import Backend, ExpertMemory, Phase
from edgerun.backends.cpu.emit.blocks.experts import LOOSE_ROWS, PACKED_ROWS
from edgerun.backends.cpu.experts.weights import ExpertStore
from edgerun.errors import BackendError, InputError
from edgerun.formats.base import PackedWeight, pack_zero_points
from edgerun.formats.stack import ExpertStack, Matrix
from edgerun.graph.ir import Graph, Node
from edgerun.graph.shapes import node_work
from edgerun.kernels import isa as isa_module
from edgerun.kernels.isa import available_isas, selected_isa
from edgerun.kernels.lang.isa import ISAS
from edgerun.offload.policies.lru import LeastRecentlyUsed
from edgerun.plan.calibration.loads import random_weight
from edgerun.plan.plans import Plan, Segment
from edgerun.plan.streaming import streamed_bytes
from edgerun.plan.workload import MAX_VALUE_BYTES, affordable_rows
from edgerun.state import Batch, SequenceStore, same_attention
from tests.support.bundles import bundle_of, runner
from tests.support.peers import needs_complete_onnxruntime

SPEC = same_attention(1, 1, 16, "fp32")
K, N = 96, 40
FORMS = [
    ("float", "float32"),
    ("float", "int4"),
    ("int8_block", "int4"),
    ("int8_block", "int4_asym"),
    ("int8_block", "int8"),
    ("int8_block", "ternary"),
    ("int8_row", "ternary"),
]
F32 = NDArray[np.float32]


@pytest.fixture(scope="module", params=[1, 2])
def backend(request: pytest.FixtureRequest) -> Iterator[Backend]:
    cpu_backend = make_backend("cpu", given={"threads": request.param})
    yield cpu_backend
    cpu_backend.close()


@pytest.mark.parametrize("form", ["int8_block", "float"])
def test_scales_are_halved_if_half_precision_holds_those_of_all_experts(form: str) -> None:
    graph, sizes = layer(form, "int4", 3, 2), []
    stacks = [each for each in graph.constants.values() if isinstance(each, ExpertStack)]
    matrices = [each for stack in stacks for each in stack.matrices]
    scales = [each.scales for each in matrices if isinstance(each, PackedWeight)]
    for each in scales:
        each[:] = each.astype(np.float16)
    for last in (scales[-1][-1, -1], np.float32(1 + 2**-12)):
        scales[-1][-1, -1] = last
        sizes.append(ExpertStore(selected_isa()).prepare(graph, graph.nodes[0]).layout.nbytes)
    assert (sizes[0] < sizes[1]) == (form == "int8_block")


def layer(form: str, weights: str, experts: int, top_k: int, *, biased: bool = False) -> Graph:
    """One node with random weights, no two experts alike; of gpt-oss's kind with biases."""
    sizes = {"gate": (K, N), "up": (K, N), "down": (N, K)}
    constants = {
        name: ExpertStack(tuple(random_matrix(weights, size, 10 * e + at) for e in range(experts)))
        for at, (name, size) in enumerate(sizes.items())
    }
    if biased:
        rng = np.random.default_rng(experts)
        for name, (_, height) in sizes.items():
            vectors = rng.standard_normal((experts, height)).astype(np.float32) * 4
            constants[f"{name}_bias"] = ExpertStack(tuple(vectors))
    activation = "clamped_swiglu" if biased else "silu"
    attributes = {"top_k": top_k, "activation": activation, "activations": form}
    node = Node("experts", "layer", ("x", "routes", *constants), ("out",), attributes)
    return Graph([node], ["x", "routes"], ["out"], {**constants})


def random_matrix(weights: str, size: tuple[int, int], seed: int) -> Matrix:
    """A matrix of an expert; with ``_asym`` each of its blocks has any zero point."""
    matrix = random_weight(weights.removesuffix("_asym"), size, seed)
    assert not isinstance(matrix, ExpertStack)
    if not weights.endswith("_asym"):
        return matrix
    assert isinstance(matrix, PackedWeight)
    points = np.random.default_rng(seed).integers(0, 1 << matrix.bits, matrix.scales.shape, "u1")
    return replace(matrix, zeros=pack_zero_points(points, matrix.bits))


def run(backend: Backend, graph: Graph, chunk: int, **values: F32) -> F32:
    """The output of all rows, ``chunk`` of them at a time."""
    program = backend.compile(graph, Shape.of(chunk), CompileOptions(SPEC))
    height, outputs = len(next(iter(values.values()))), []
    cache = SequenceStore(SPEC, height)
    for start in range(0, height, chunk):
        some = {name: value[start : start + chunk] for name, value in values.items()}
        batch = Batch.of([0] * len(next(iter(some.values()))), 0, 0, logits="none")
        outputs.append(program(batch, cache, some)[graph.outputs[0]].copy())
    program.close()
    return np.concatenate(outputs)


def one_by_one(backend: Backend, graph: Graph, x: F32, routes: F32) -> F32:
    """What the layer is: every expert a network of ordinary layers, and a sum in their order."""
    (node,) = graph.nodes
    out = np.zeros_like(x)
    for expert in range(routes.shape[1]):
        constants = {
            name: stack.matrices[expert]  # type: ignore[union-attr]
            for name, stack in graph.constants.items()
        }
        rounding = {"activations": node.attrs["activations"]}
        activation = {"activation": node.attrs["activation"]}
        biases = [name for name in ("gate_bias", "up_bias", "down_bias") if name in constants]
        gate, up, down = ([name] for name in biases) if biases else ([], [], [])
        nodes = [
            Node("linear", "g", ("x", "gate", *gate), ("a",), rounding),
            Node("linear", "u", ("x", "up", *up), ("b",), rounding),
            Node("gate", "m", ("a", "b"), ("c",), activation),
            Node("linear", "d", ("c", "down", *down), ("y",), rounding),
        ]
        output = run(backend, Graph(nodes, ["x"], ["y"], {**constants}), len(x), x=x)
        rows = np.flatnonzero(routes[:, expert])
        out[rows] += routes[rows, expert, None] * output[rows]
    return out


def random_routes(rng: np.random.Generator, height: int, experts: int, top_k: int) -> F32:
    """Any number of experts up to ``top_k`` for each row, some of them popular."""
    routes = np.zeros((height, experts), np.float32)
    likely = rng.dirichlet(np.full(experts, 0.5)) + 1e-9
    for row in routes:
        count = rng.integers(0, top_k + 1)
        row[rng.choice(experts, count, replace=False, p=likely / likely.sum())] = rng.uniform(
            0.01, 1, count
        )
    return routes


@pytest.mark.parametrize(("form", "weights"), FORMS)
@pytest.mark.parametrize(("height", "biased"), [(1, False), (9, False), (40, False), (9, True)])
def test_every_expert_is_computed_once_a_row_with_its_own_weight(
    form: str, weights: str, height: int, biased: bool, backend: Backend
) -> None:
    """Bit for bit what ordinary layers compute, over random routers."""
    rng = np.random.default_rng([height, len(form)])
    graph = layer(form, weights, 6, 3, biased=biased)
    for _ in range(4):
        x = rng.standard_normal((height, K)).astype(np.float32)
        routes = random_routes(rng, height, 6, 3)
        output = run(backend, graph, height, x=x, routes=routes)
        np.testing.assert_array_equal(output, one_by_one(backend, graph, x, routes))


@pytest.mark.parametrize(("form", "weights"), FORMS)
def test_rows_depend_neither_on_their_chunk_nor_on_each_other(
    form: str, weights: str, backend: Backend
) -> None:
    rng = np.random.default_rng(3)
    graph = layer(form, weights, 5, 5)
    x = rng.standard_normal((53, K)).astype(np.float32)
    routes = random_routes(rng, 53, 5, 5)
    alone = run(backend, graph, 1, x=x, routes=routes)
    for chunk in (3, 16, 20, 53):
        np.testing.assert_array_equal(run(backend, graph, chunk, x=x, routes=routes), alone)
    order = rng.permutation(53)
    mixed = run(backend, graph, 53, x=x[order], routes=routes[order])
    np.testing.assert_array_equal(mixed, alone[order])


def test_what_a_row_cannot_do_to_others(backend: Backend) -> None:
    """Rows without numbers, or with too many routes, are computed as the definition says."""
    rng = np.random.default_rng(4)
    graph = layer("int8_block", "int4", 6, 2)
    x = rng.standard_normal((20, K)).astype(np.float32)
    routes = random_routes(rng, 20, 6, 2)
    expected = run(backend, graph, 20, x=x, routes=routes)
    wrong = routes.copy()
    wrong[3], wrong[7], wrong[11, 4] = 1, np.nan, np.inf
    output = run(backend, graph, 20, x=x, routes=wrong)
    others = [row for row in range(20) if row not in (3, 7, 11)]
    np.testing.assert_array_equal(output[others], expected[others])
    first = np.where(np.arange(6) < 2, 1, 0).astype(np.float32)
    np.testing.assert_array_equal(output[3:4], run(backend, graph, 1, x=x[3:4], routes=first[None]))
    assert np.isnan(output[7]).all()
    assert not np.isfinite(output[11]).any()


def test_stacks_of_unlike_scales_are_read_alike(backend: Backend) -> None:
    """One expert with a scale a row, one without: both have the layout that suits all."""
    graph = layer("int8_row", "ternary", 2, 1)
    stack = graph.constants["up"]
    assert isinstance(stack, ExpertStack)
    first, second = stack.matrices
    scales = second.scales.copy()  # type: ignore[union-attr]
    scales[:, 0] *= 2
    other = ExpertStack((first, replace(second, scales=scales)))  # type: ignore[type-var]
    graph.constants["up"] = other
    x = np.random.default_rng(5).standard_normal((3, K)).astype(np.float32)
    routes = np.float32([[1, 0], [0, 1], [1, 0]])
    (node,) = graph.nodes
    expected = one_by_one(backend, graph, x, routes)
    np.testing.assert_allclose(run(backend, graph, 3, x=x, routes=routes), expected, rtol=1e-5)


@pytest.mark.parametrize(("form", "weights"), FORMS)
def test_experts_that_come_and_go_compute_the_same_bits(form: str, weights: str) -> None:
    """Waves of two and more, for any number of rows."""
    rng = np.random.default_rng(6)
    graph = layer(form, weights, 6, 2)
    x, routes = rng.standard_normal((20, K)).astype(np.float32), random_routes(rng, 20, 6, 2)
    whole = make_backend("cpu", given={"threads": 2})
    for slots in (2, 3, 5):
        nbytes = slots * slot_bytes(whole, graph)
        given = {"threads": 2, "experts": ExpertMemory(nbytes, LeastRecentlyUsed)}
        some = make_backend("cpu", given=given)
        for chunk in (1, 7, 20):
            expected = run(whole, graph, chunk, x=x, routes=routes)
            output = run(some, graph, chunk, x=x, routes=routes)
            np.testing.assert_array_equal(output, expected)
        assert len(some._shared.experts.stream.slots) == slots  # type: ignore[attr-defined]
        some.close()
    whole.close()


@pytest.mark.parametrize(
    ("form", "weights"), [("int8_block", "int4_asym"), ("int8_row", "ternary")]
)
def test_long_prompts_go_through_one_slot(form: str, weights: str) -> None:
    """Waves of one expert each, whose rows are so many that weights are unpacked for them."""
    rng, rows = np.random.default_rng(8), 3 * LOOSE_ROWS + 8
    graph = layer(form, weights, 3, 1)
    x = rng.standard_normal((rows, K)).astype(np.float32)
    routes = np.eye(3, dtype=np.float32)[rng.integers(0, 3, rows)]
    whole = make_backend("cpu", given={"threads": 2})
    expected = run(whole, graph, rows, x=x, routes=routes)
    nbytes = int(whole._shared.experts.nbytes) // 3  # type: ignore[attr-defined]
    given = {"threads": 2, "experts": ExpertMemory(nbytes, LeastRecentlyUsed)}
    single = make_backend("cpu", given=given)
    for _ in range(2):
        output = run(single, graph, rows, x=x, routes=routes)
        np.testing.assert_array_equal(output, expected)
    whole.close()
    single.close()


@pytest.mark.parametrize("isa", available_isas())
@pytest.mark.parametrize(("form", "weights"), [("int8_block", "int8"), ("int8_row", "ternary")])
def test_many_rows_have_the_bits_of_few(
    form: str, weights: str, isa: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Experts get none, few and many rows, which begin anywhere, in tiles that are full or not."""
    monkeypatch.setattr(isa_module, "selected_isa", lambda: ISAS[isa])
    rng, experts, top_k = np.random.default_rng(9), 5, 2
    least = PACKED_ROWS if form == "int8_block" else LOOSE_ROWS
    rows = least * experts // top_k + 9
    graph = layer(form, weights, experts, top_k)
    backend = make_backend("cpu", given={"threads": 2})
    x = rng.standard_normal((rows, K)).astype(np.float32)
    routes = random_routes(rng, rows, experts, top_k)
    routes[:, 3] = 0.0
    routes[5:, 1] = 0.0
    expected = run(backend, graph, 7, x=x, routes=routes)
    np.testing.assert_array_equal(run(backend, graph, rows, x=x, routes=routes), expected)
    backend.close()


def slot_bytes(backend: Backend, graph: Graph) -> int:
    """What an expert takes in memory."""
    run(backend, graph, 1, x=np.zeros((1, K), np.float32), routes=np.zeros((1, 6), np.float32))
    return int(backend._shared.experts.nbytes) // 6  # type: ignore[attr-defined]


def test_an_expert_unlike_the_first_is_refused_when_it_is_read() -> None:
    """The first has a scale a row, which the kernel was chosen for; to look at all takes long."""
    graph = layer("int8_row", "ternary", 6, 1)
    stack = graph.constants["up"]
    assert isinstance(stack, ExpertStack)
    scales = stack.matrices[5].scales.copy()  # type: ignore[union-attr]
    scales[:, 0] *= 2
    unlike = replace(stack.matrices[5], scales=scales)  # type: ignore[type-var]
    graph.constants["up"] = ExpertStack((*stack.matrices[:5], unlike))
    given = {"threads": 1, "experts": ExpertMemory(1 << 13, LeastRecentlyUsed)}
    backend = make_backend("cpu", given=given)
    x, routes = np.ones((1, K), np.float32), np.eye(6, dtype=np.float32)
    run(backend, graph, 1, x=x, routes=routes[:1])
    with pytest.raises(BackendError, match="several scales in a row where the first expert has"):
        run(backend, graph, 1, x=x, routes=routes[5:])
    backend.close()


class Fails(LeastRecentlyUsed):
    """A policy of somebody else's, with a mistake in one of its methods."""

    method = ""

    def use(self, layer: int, experts: Sequence[int], scores: Sequence[float]) -> None:
        assert self.method != "use", "out of its depth"
        super().use(layer, experts, scores)

    def in_order(self) -> Iterable[tuple[int, int]]:
        assert self.method != "in_order", "out of its depth"
        return super().in_order()


@pytest.mark.parametrize("method", ["use", "in_order"])
def test_a_policy_that_fails_ends_the_run_and_no_reader(
    method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph = layer("int8_block", "int4", 6, 2)
    given = {"threads": 1, "experts": ExpertMemory(1 << 15, Fails)}
    backend = make_backend("cpu", given=given)
    x, routes = np.ones((2, K), np.float32), np.eye(2, 6, dtype=np.float32)
    monkeypatch.setattr(Fails, "method", method)
    with pytest.raises(BackendError, match="brought into memory: AssertionError.*out of its depth"):
        # Policies are told while experts are read; on a busy machine a run may be over by then.
        for shift in range(0, 60, 2):
            run(backend, graph, 2, x=x, routes=np.roll(routes, shift, axis=1))
    stream = backend._shared.experts.stream  # type: ignore[attr-defined]
    assert all(reader.is_alive() for reader in stream._threads)
    backend.close()


def test_slots_are_as_large_as_the_largest_expert_of_their_segment() -> None:
    """Another segment with larger ones, which only a mixed plan has, is refused."""
    given = {"threads": 1, "experts": ExpertMemory(1 << 13, LeastRecentlyUsed)}
    backend = make_backend("cpu", given=given)
    compile_ = partial(backend.compile, shape=Shape.of(1), options=CompileOptions(SPEC))
    compile_(layer("int8_block", "ternary", 6, 1))
    with pytest.raises(InputError, match="of layer have .* bytes and those of layers before"):
        compile_(layer("int8_block", "int8", 6, 1))
    backend.close()


def test_work_counts_the_experts_that_have_rows() -> None:
    graph = layer("int8_block", "int4", 8, 2)
    work = node_work(graph, graph.nodes[0], {})
    assert work.macs == 2 * 3 * K * N
    assert work.active_experts(1) == pytest.approx(2)
    assert work.active_experts(2) == pytest.approx(8 * (1 - 0.75**2))
    assert work.active_experts(10_000) == pytest.approx(8)
    stored = sum(constant.nbytes for constant in graph.constants.values())
    assert work.read_nbytes(1) == pytest.approx(stored / 4)


@pytest.mark.parametrize("weights", ["int4", "int4_asym"])
def test_decoding_reads_the_experts_of_one_row(weights: str) -> None:
    backend = make_backend("cpu")
    sizes = {}
    for top_k in (2, 8):
        graph = layer("int8_block", weights, 8, top_k)
        plan = Plan({Phase.DECODE: (Segment("cpu", graph, 0.0),)}, {})
        sizes[top_k] = streamed_bytes(plan, [backend])
    backend.close()
    stored = sum(constant.nbytes for constant in graph.constants.values())
    assert sizes == {2: stored // 4, 8: stored}


def test_calls_have_no_more_rows_than_there_is_memory_for_their_places() -> None:
    graph = layer("int8_block", "int4", 8, 5)
    assert affordable_rows(graph) == MAX_VALUE_BYTES // (4 * 5 * 256)


@needs_complete_onnxruntime
@pytest.mark.parametrize("weights", ["fp32", "int8", "int4", "ternary"])
@pytest.mark.parametrize("name", ["mixtral", "olmoe", "qwen3_moe"])
def test_back_ends_choose_the_same_64_tokens(name: str, weights: str) -> None:
    tokens = {}
    for backend in ("cpu", "reference", "onnxruntime"):
        folder = bundle_of(name, weights=weights, activations="fp32")
        with runner(folder, backend, context=128) as model:
            ids = [256, *range(20)]
            logits = model.run(ids)[-1:]
            tokens[backend] = []
            for _ in range(64):
                tokens[backend].append(int(logits[0].argmax()))
                logits = model.run(tokens[backend][-1:])
    assert tokens["cpu"] == tokens["reference"] == tokens["onnxruntime"]
