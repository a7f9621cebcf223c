"""A row has the same bits alone, in a chunk of any size, and whatever is multiplied together."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from edgerun.backends import CompileOptions, Shape, make_backend
from edgerun.backends.base import Backend
from edgerun.backends.cpu.binder import ROWS_AT_ONCE
from edgerun.backends.cpu.families import LOOKUP
from edgerun.backends.cpu.row_paths import usual_path
from edgerun.graph.ir import Constant, Graph, Node, ValueShape
from edgerun.kernels.isa import selected_isa
from edgerun.kernels.run.instructions import Instruction
from edgerun.kernels.run.program import Program
from edgerun.machine.profile import family
from edgerun.plan.calibration.loads import random_weight
from edgerun.state import Batch, SequenceStore, same_attention

ROWS, K, N = 85, 352, 70
MANY = 64  # rows, which every instruction set that unpacks at all unpacks for
SPEC = same_attention(1, 1, 16, "fp32")
FAMILIES = [
    ("int8_block", "int2"),
    ("int8_block", "int4"),
    ("int8_block", "int8"),
    ("int8_row", "ternary"),
    ("int8_row", "trits"),
    ("int8_row", "int8"),
    ("float", "int4"),
    ("float", "float32"),
]
GATED_FORMS = [
    ("int8_block", "int4"),
    ("int8_block", "ternary"),
    ("int8_row", "ternary"),
    ("int8_row", "int8"),
    ("float", "int4"),
]
F32 = NDArray[np.float32]


def product(
    weight: Constant, activations: str, x: NDArray[np.float32], chunk: int, trits: bool
) -> NDArray[np.float32]:
    """The layer's output for all rows, ``chunk`` of them at a time."""
    node = Node("linear", "layer", ("x", "w"), ("y",), {"activations": activations})
    graph = Graph([node], ["x"], ["y"], {"w": weight})
    given = {"threads": 1, "pack": "trits" if trits else "two_bits"}
    backend = make_backend("cpu", given=given)
    program = backend.compile(graph, Shape.of(chunk), CompileOptions(SPEC))
    cache, outputs = SequenceStore(SPEC, ROWS), []
    for start in range(0, ROWS, chunk):
        some = x[start : start + chunk]
        batch = Batch.of([0] * len(some), 0, 0, logits="none")
        outputs.append(program(batch, cache, {"x": some})["y"].copy())
    program.close()
    backend.close()
    return np.concatenate(outputs)


@pytest.mark.parametrize(("activations", "weights"), FAMILIES)
def test_rows_do_not_depend_on_their_chunk(activations: str, weights: str) -> None:
    x = np.random.default_rng(2).standard_normal((ROWS, K)).astype(np.float32)
    weight, trits = random_weight(weights, (K, N), 3), weights == "trits"
    alone = product(weight, activations, x, 1, trits)
    for chunk in (3, 8, 20, ROWS):
        np.testing.assert_array_equal(product(weight, activations, x, chunk, trits), alone)


@pytest.fixture(scope="module")
def backend() -> Iterator[Backend]:
    # How many kernels there are must not depend on what this machine was measured to be best at.
    cpu_backend = make_backend("cpu", given={"threads": 2, "row_paths": {}})
    yield cpu_backend
    cpu_backend.close()


def gate_graph(form: tuple[str, str], outputs: list[str], biases: bool = False) -> Graph:
    """Two projections and a gate."""
    activations, weights = form
    attributes = {"activations": activations}
    constants: dict[str, Any] = {
        name: random_weight(weights, (K, N), seed) for seed, name in enumerate(("gate", "up"))
    }
    further: tuple[str, ...] = ()
    if biases:
        constants["b"] = np.linspace(-1, 1, N, dtype=np.float32)
        further = ("b",)
    nodes = [
        Node("linear", "g", ("x", "gate", *further), ("a",), attributes),
        Node("linear", "u", ("x", "up", *further), ("c",), attributes),
        Node("gate", "m", ("a", "c"), ("y",), {"activation": "silu"}),
    ]
    return Graph(nodes, ["x"], outputs, constants)


def gated(backend: Backend, whole: Graph, x: F32, name: str = "x") -> tuple[F32, int]:
    """The gate's output, of rows called so, and how many instructions the program has."""
    program = backend.compile(whole, Shape.of(len(x)), CompileOptions(SPEC))
    batch = Batch.of([0] * len(x), 0, 0, logits="none")
    output = program(batch, SequenceStore(SPEC, len(x)), {name: x})["y"].copy()
    instructions = program.launches.instructions
    program.close()
    return output, instructions


@pytest.mark.parametrize("biases", [False, True])
@pytest.mark.parametrize("form", GATED_FORMS, ids=str)
def test_one_kernel_has_the_bits_of_three(
    form: tuple[str, str], biases: bool, backend: Backend
) -> None:
    x = np.random.default_rng(1).standard_normal((MANY, K)).astype(np.float32)
    for rows in (1, 3, MANY):
        together, count = gated(backend, gate_graph(form, ["y"], biases), x[:rows])
        # What is asked for by its name must be there.
        apart, more = gated(backend, gate_graph(form, ["y", "a"], biases), x[:rows])
        np.testing.assert_array_equal(together, apart)
        # Where weights of a prompt are unpacked, each product has a kernel for blocks of rows and
        # one for those left over.
        isa = selected_isa()
        path = usual_path(isa, family(*form))
        fused = form[0] != "float" and (rows < MANY or path.name != LOOKUP)
        unpacked = path.name == isa.prompts and rows >= path.least
        assert (more - count) == (0 if not fused else 3 if unpacked else 2)


@pytest.mark.parametrize("form", GATED_FORMS[1:3], ids=str)
def test_a_network_without_a_gate_is_one_kernel(form: tuple[str, str], backend: Backend) -> None:
    whole = gate_graph(form, ["y"], biases=True)
    up = whole.nodes[1]
    gate = Node("gate", "m", ("c", "c"), ("y",), {"activation": "relu"})
    x = np.random.default_rng(1).standard_normal((MANY, K)).astype(np.float32)
    for rows in (1, 3, MANY):
        alone, named = (
            Graph([up, gate], ["x"], out, whole.constants) for out in (["y"], ["y", "c"])
        )
        together, count = gated(backend, alone, x[:rows])
        apart, more = gated(backend, named, x[:rows])
        np.testing.assert_array_equal(together, apart)
        looks_up = usual_path(selected_isa(), family(*form)).name == LOOKUP
        assert more - count == (0 if looks_up and rows == MANY else 1)


@pytest.mark.parametrize("form", GATED_FORMS[1:3], ids=str)
@pytest.mark.parametrize("op", ["rms_norm", "layer_norm"])
def test_norms_round_what_their_readers_want_rounded(
    op: str, form: tuple[str, str], backend: Backend
) -> None:
    whole = gate_graph(form, ["y"])
    weight = {"n": np.linspace(-1, 1, K, dtype=np.float32)}
    groups = {"groups": 1} if op == "layer_norm" else {}
    norm = Node(op, "n", ("r", "n"), ("x",), {"epsilon": 1e-5, **groups})
    x = np.random.default_rng(1).standard_normal((3, K)).astype(np.float32)
    results = []
    for outputs in (["y"], ["y", "x"]):
        constants, shapes = {**whole.constants, **weight}, {"r": ValueShape(K)}
        graph = Graph([norm, *whole.nodes], ["r"], outputs, constants, shapes=shapes)
        results.append(gated(backend, graph, x, "r"))
    (together, count), (apart, more) = results
    np.testing.assert_array_equal(together, apart)
    assert more - count == 1


def test_projections_of_different_rows_stay_apart(backend: Backend) -> None:
    whole = gate_graph(GATED_FORMS[0], ["y"])
    first, second, gate = whole.nodes
    other = Node("linear", "u", ("z", *second.inputs[1:]), second.outputs, second.attrs)
    apart = Graph([first, other, gate], ["x", "z"], ["y"], whole.constants)
    program = backend.compile(apart, Shape.of(1), CompileOptions(SPEC))
    x = np.random.default_rng(2).standard_normal((1, K)).astype(np.float32)
    batch = Batch.of([0], 0, 0, logits="none")
    output = program(batch, SequenceStore(SPEC, 1), {"x": x, "z": x})["y"].copy()
    program.close()
    np.testing.assert_array_equal(output, gated(backend, whole, x)[0])


def test_threads_take_rows_together_and_units_of_attention_one_by_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Units are as many as there are, not times so many heads, where one key head is for all."""
    programs: list[list[Instruction]] = []
    begin = Program.__init__

    def listed(program: Program, steps: list[Instruction], *rest: Any) -> None:
        programs.append(steps)
        begin(program, steps, *rest)

    monkeypatch.setattr(Program, "__init__", listed)
    sizes = {"num_heads": 2, "num_kv_heads": 1, "head_dim": 16}
    attributes = {"layer": 0, **sizes, "scale": 0.25, "window": 0, "softcap": 0.0}
    node = Node("attention", "a", ("q", "k", "v"), ("out",), attributes)
    shapes = {"q": ValueShape(32), "k": ValueShape(16), "v": ValueShape(16)}
    backend = make_backend("cpu", given={"threads": 1})
    graph = Graph([node], [*shapes], ["out"], {}, shapes=shapes)
    values = {name: np.ones((ROWS, each.width), np.float32) for name, each in shapes.items()}
    program = backend.compile(graph, Shape.of(ROWS), CompileOptions(SPEC))
    cache = SequenceStore(SPEC, ROWS)
    slot = cache.open()
    cache.reserve(slot, ROWS)
    program(Batch.of([0] * ROWS, 0, slot), cache, values)
    program.close()
    backend.close()
    at_once = {step.label: step.at_once for steps in programs for step in steps}
    assert at_once.pop("a/write") == ROWS_AT_ONCE
    assert {"a", "a/many"} <= set(at_once)
    assert set(at_once.values()) == {1}
