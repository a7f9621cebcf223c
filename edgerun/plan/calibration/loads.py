"""Graphs of linear layers with random weights, to time kernels and devices with."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from edgerun.backends.cpu.families import REGROUPED, WEIGHT_BITS
from edgerun.backends.cpu.regroup import GROUP
from edgerun.formats.base import PackedWeight, pack_bits
from edgerun.graph.ir import Constant, Graph, Node, ValueShape

BLOCK = 32


@dataclass(frozen=True, slots=True)
class Load:
    """A graph of linear layers, for timing.

    Attributes:
        activations: as in ``ops/linear.py``.
        weights: as they lie in memory, one of ``WEIGHT_BITS``.
        rows: batch rows.
        size: input and output features.
        layers: how many in a row.
        chained: each reads what the one before wrote, as in a model; else all read the input.
        shared: all have the same weights, which then stay in the cache.
    """

    activations: str
    weights: str
    rows: int
    size: tuple[int, int]
    layers: int
    chained: bool = False
    shared: bool = True

    @property
    def multiply_adds(self) -> int:
        """In one run."""
        return self.rows * self.size[0] * self.size[1] * self.layers


def graph_of(load: Load) -> Graph:
    """The layers of a load as a graph with the input ``x``."""
    nodes: list[Node] = []
    constants: dict[str, Constant] = {}
    for layer in range(load.layers):
        weight = "w0" if load.shared else f"w{layer}"
        if weight not in constants:
            constants[weight] = random_weight(load.weights, load.size, layer)
        source = f"y{layer - 1}" if load.chained and layer else "x"
        attributes = {"activations": load.activations}
        nodes.append(Node("linear", f"l{layer}", (source, weight), (f"y{layer}",), attributes))
    shapes = {"x": ValueShape(load.size[0])}
    return Graph(nodes, ["x"], [nodes[-1].outputs[0]], constants, shapes=shapes)


def random_weight(name: str, size: tuple[int, int], seed: int) -> Constant:
    """A matrix ``[N, K]`` whose products keep the size of what they multiply.

    Half precision does not hold its scales, as it does not hold those of most models.
    """
    k, n = size
    rng = np.random.default_rng(seed)
    if name == "float32":
        return rng.standard_normal((n, k), np.float32) * np.float32(k**-0.5)
    ternary = name in ("ternary", "trits")  # of two bits, the ternary codes are 1, 2 and 3
    bits = math.ceil(WEIGHT_BITS[name])
    block = GROUP if name == REGROUPED else BLOCK
    blocks = -(-k // block)
    codes = rng.integers(int(ternary), 1 << bits, (n, blocks, block), np.uint8)
    scales = np.full((n, blocks), 1.1 * k**-0.5 / 2 ** (bits - 1), np.float32)
    stored = "ternary" if ternary else f"int{bits}"
    return PackedWeight(stored, (n, k), block, pack_bits(codes, bits), scales)
