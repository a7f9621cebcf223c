"""Prompts of awkward sizes have the bits of their rows, on every instruction set that is here."""

from __future__ import annotations

import os
import threading

import numpy as np
import pytest
from numpy.typing import NDArray

from edgerun.backends import CompileOptions, Shape, make_backend
from edgerun.graph.ir import Graph, Node
from edgerun.kernels import isa as isa_module
from edgerun.kernels.isa import available_isas
from edgerun.kernels.lang.isa import ISAS, MODELS, Isa
from edgerun.kernels.layouts.tile_order import SIDE, STRIP_BYTES, TOKENS, strip_panels
from edgerun.plan.calibration.loads import random_weight
from edgerun.state import Batch, SequenceStore, same_attention

F32 = NDArray[np.float32]
SPEC = same_attention(1, 1, 16, "fp32")
BEST, *OTHERS = available_isas()
# The matrix unit is modelled where it is not there. Compiling for the others takes the time.
SETS = [
    ISAS[BEST],
    MODELS["amx_model"],
    *(pytest.param(ISAS[name], marks=pytest.mark.slow) for name in OTHERS),
]
FAMILIES = [("int8_block", "int4"), ("int8_row", "ternary")]
# One, almost a tile, one and a little more, almost a pair of tiles and a little more.
HEIGHTS = (1, 15, 16, 17, 31, 33)
N = 71  # fills no vector, no panel and no tile
RUNS = 10
BEYOND = 30_016  # of K: 32 rows are more than a second cache holds of unpacked weights


@pytest.fixture(params=SETS, ids=lambda isa: isa.name)
def instruction_set(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Isa:
    chosen: Isa = request.param
    monkeypatch.setattr(isa_module, "selected_isa", lambda: chosen)
    return chosen


def gated_layer(form: tuple[str, str], k: int = 352) -> Graph:
    """A layer, and a gate of two others, of which nobody reads what they project."""
    activations, weights = form
    attributes = {"activations": activations}
    nodes = [Node("linear", name, ("x", f"w{name}"), (f"y{name}",), attributes) for name in "abc"]
    nodes.append(Node("gate", "gate", ("ya", "yb"), ("y",), {"activation": "silu"}))
    constants = {
        f"w{name}": random_weight(weights, (k, N), seed) for seed, name in enumerate("abc")
    }
    return Graph(nodes, ["x"], ["y", "yc"], dict(constants))


def rows_of(rows: int, k: int = 352, seed: int = 2) -> F32:
    return np.random.default_rng(seed).standard_normal((rows, k)).astype(np.float32)


def outputs(graph: Graph, batches: list[F32], threads: int = 1) -> list[F32]:
    """What one program, made for the largest batch, makes of each: gate and layer side by side."""
    backend = make_backend("cpu", given={"threads": threads})
    rows = max(map(len, batches))
    program = backend.compile(graph, Shape.of(rows), CompileOptions(SPEC))
    cache, results = SequenceStore(SPEC, rows), []
    for x in batches:
        values = program(Batch.of([0] * len(x), 0, 0, logits="none"), cache, {"x": x})
        results.append(np.hstack([values["y"], values["yc"]]))
    program.close()
    backend.close()
    return results


def alone(graph: Graph, x: F32) -> F32:
    """What the program for one row makes of each row."""
    return np.concatenate(outputs(graph, [x[row : row + 1] for row in range(len(x))]))


@pytest.mark.parametrize("form", FAMILIES, ids=str)
def test_prompts_of_any_height(form: tuple[str, str], instruction_set: Isa) -> None:
    graph, x = gated_layer(form), rows_of(max(HEIGHTS))
    expected = alone(graph, x)
    batches = [x[:height] for height in HEIGHTS]
    for height, output in zip(HEIGHTS, outputs(graph, batches), strict=True):
        assert output.shape == (height, 2 * N)
        np.testing.assert_array_equal(output, expected[:height])


def test_rows_that_are_longer_than_the_second_cache(instruction_set: Isa) -> None:
    assert strip_panels(BEYOND) * SIDE * BEYOND > STRIP_BYTES
    graph, x = gated_layer(FAMILIES[1], BEYOND), rows_of(TOKENS + 1, BEYOND)
    np.testing.assert_array_equal(outputs(graph, [x])[0], alone(graph, x))


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="threads cannot be bound here")
def test_two_programs_on_one_core(instruction_set: Isa) -> None:
    """Teams of two threads each, which all have to wait for one core, and to let it go."""
    graph, inputs = gated_layer(FAMILIES[1]), [rows_of(33, seed=seed) for seed in (1, 2)]
    expected = [outputs(graph, [x])[0] for x in inputs]
    results: list[list[F32]] = [[], []]

    def work(index: int) -> None:
        results[index] = outputs(graph, [inputs[index]] * RUNS, threads=2)

    cores = os.sched_getaffinity(0)
    threads = [threading.Thread(target=work, args=(index,), daemon=True) for index in range(2)]
    os.sched_setaffinity(0, {min(cores)})  # threads that begin now inherit it
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(300)
    finally:
        os.sched_setaffinity(0, cores)
    for each, right in zip(results, expected, strict=True):
        assert len(each) == RUNS
        assert all((output == right).all() for output in each)
