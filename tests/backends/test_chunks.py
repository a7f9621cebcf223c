"""A linear layer gives a row the same bits alone, in a chunk of any size, and in a long prompt."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from edgerun.backends import CompileOptions, Shape, make_backend
from edgerun.graph.ir import Constant, Graph, Node
from edgerun.plan.calibration.loads import random_weight
from edgerun.state import Batch, SequenceStore, same_attention

ROWS, K, N = 53, 352, 70
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


def product(
    weight: Constant, activations: str, x: NDArray[np.float32], chunk: int, trits: bool
) -> NDArray[np.float32]:
    """The layer's output for all rows, ``chunk`` of them at a time."""
    node = Node("linear", "layer", ("x", "w"), ("y",), {"activations": activations})
    graph = Graph([node], ["x"], ["y"], {"w": weight})
    given = {"threads": 1, "pack": "trits" if trits else "two_bits"}
    backend = make_backend("cpu", given=given)
    program = backend.compile(graph, Shape.of(chunk), CompileOptions(SPEC))
    cache, found = SequenceStore(SPEC, ROWS), []
    for start in range(0, ROWS, chunk):
        some = x[start : start + chunk]
        batch = Batch.of([0] * len(some), 0, 0, logits="none")
        found.append(program(batch, cache, {"x": some})["y"].copy())
    program.close()
    backend.close()
    return np.concatenate(found)


@pytest.mark.parametrize(("activations", "weights"), FAMILIES)
def test_rows_do_not_depend_on_their_chunk(activations: str, weights: str) -> None:
    x = np.random.default_rng(2).standard_normal((ROWS, K)).astype(np.float32)
    weight, trits = random_weight(weights, (K, N), 3), weights == "trits"
    alone = product(weight, activations, x, 1, trits)
    for chunk in (3, 8, 20, ROWS):
        np.testing.assert_array_equal(product(weight, activations, x, chunk, trits), alone)
