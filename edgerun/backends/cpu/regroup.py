"""Weights of prompts in a form that multiplies faster and is not quite the model's.

Scales of small blocks take longer to apply than the products of a block. Rounded again to int8 with
a scale for 128 weights, and activations likewise, a prompt is multiplied faster, takes more memory,
and has other results than the same rows one by one: docs/quality.md has the error.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from edgerun.backends.cpu.families import one_scale_a_row
from edgerun.formats import dense, format_named
from edgerun.formats.base import PackedWeight
from edgerun.formats.stack import Matrix
from edgerun.graph.ir import Graph, Node
from edgerun.graph.mapped_file import read_array
from edgerun.graph.shapes import value_shapes

GROUP = 128
BYTES_A_GROUP = GROUP + 4  # codes and a scale
SLAB_ELEMENTS = 1 << 20  # they stay in the caches


def has_faster_form(weight: Matrix, activations: str) -> bool:
    """Whether prompts gain by other weights: those that have scales of small blocks."""
    if not isinstance(weight, PackedWeight) or weight.block >= GROUP or activations == "float":
        return False
    return activations == "int8_block" or not one_scale_a_row(weight)


def regrouped(weight: PackedWeight) -> PackedWeight:
    """The same weights, whose codes may be in a file, as int8 with a scale for ``GROUP``."""
    n, k = weight.shape
    groups, step = -(-k // GROUP), max(1, SLAB_ELEMENTS // k)
    codes, scales = np.empty((n, groups, GROUP), np.uint8), np.empty((n, groups), np.float32)
    for start in range(0, n, step):
        some = slice(start, min(n, start + step))
        rows = replace(
            weight,
            shape=(some.stop - start, k),
            codes=read_array(weight.codes[some]),
            scales=weight.scales[some],
            zeros=None if weight.zeros is None else weight.zeros[some],
            offsets=None if weight.offsets is None else weight.offsets[:, some],
        )
        with np.errstate(over="ignore", invalid="ignore"):  # as in kernels
            padded = np.pad(dense(rows), ((0, 0), (0, groups * GROUP - k)))
            packed = format_named("int8").pack(padded, GROUP)
        codes[some], scales[some] = packed.codes, packed.scales
    return PackedWeight("int8", weight.shape, GROUP, codes, scales)


def faster_layers(graph: Graph) -> list[Node]:
    """Layers that prompts multiply by other weights: not those of which few rows are asked for."""
    selected = {name for name, shape in value_shapes(graph).items() if shape.selected}
    return [
        node
        for node in graph.nodes
        if node.op == "linear"
        and node.inputs[0] not in selected
        and has_faster_form(graph.matrix(node.inputs[1]), str(node.attrs["activations"]))
    ]


def regrouped_bytes(graph: Graph) -> dict[str, int]:
    """Memory that the other weights of a graph take, by the names of its own."""
    shapes = {node.inputs[1]: graph.matrix(node.inputs[1]).shape for node in faster_layers(graph)}
    return {name: n * -(-k // GROUP) * BYTES_A_GROUP for name, (n, k) in shapes.items()}
