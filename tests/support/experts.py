"""One layer of random experts on the processor."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from edgerun.backends.base import CompileOptions, Shape
from edgerun.backends.cpu import CpuBackend
from edgerun.formats import format_named
from edgerun.formats.stack import ExpertStack
from edgerun.graph.ir import Graph, Node, ValueShape
from edgerun.offload.sharing.layer import Layer
from edgerun.state import same_attention

STATES = same_attention(1, 1, 16, "fp32")
EXPERTS = 2


@dataclass(frozen=True)
class Case:
    """An expert: how it is stored, its sizes, and how many threads share a row."""

    weights: str
    activations: str
    hidden: int
    width: int
    block: int = 32
    rows: int = 1
    activation: str = "silu"
    biased: bool = False
    groups: int = 1
    weights_up: str = ""
    halves: bool = False  # scales that half precision holds


def normal(shape: tuple[int, ...], seed: int) -> Any:
    return np.random.default_rng([seed, *shape]).standard_normal(shape).astype(np.float32)


def graph_of(case: Case) -> Graph:
    """A layer of the experts of a case."""
    shapes = {"gate": (case.width, case.hidden), "up": (case.width, case.hidden)}
    shapes["down"] = case.hidden, case.width
    stacks: dict[str, Any] = {}
    for seed, (name, (n, k)) in enumerate(shapes.items()):
        padded = np.zeros((EXPERTS, n, -(-k // case.block) * case.block), np.float32)
        padded[:, :, :k] = normal((EXPERTS, n, k), seed) / np.float32(k**0.5)
        stacks[name] = ExpertStack(tuple(stored(case, name, each, k) for each in padded))
    if case.biased:
        for seed, (name, (n, _)) in enumerate(shapes.items()):
            stacks[f"{name}_bias"] = ExpertStack(tuple(3 * normal((EXPERTS, n), 9 + seed)))
    attributes = {"top_k": 1, "activation": case.activation, "activations": case.activations}
    node = Node("experts", "layer", ("x", "routes", *stacks), ("out",), attributes)
    shape = {"x": ValueShape(case.hidden), "routes": ValueShape(EXPERTS)}
    return Graph([node], ["x", "routes"], ["out"], stacks, shapes=shape)


def layer_of(case: Case) -> tuple[Layer, CpuBackend]:
    """The experts of a case on the processor."""
    graph, cpu = graph_of(case), CpuBackend()
    cpu.configure({"threads": 1})
    (node,) = graph.nodes
    return Layer.of(0, node, graph, Shape.of(case.rows), cpu, CompileOptions(STATES)), cpu


def stored(case: Case, name: str, values: Any, k: int) -> Any:
    weights = (name == "up" and case.weights_up) or case.weights
    packed = replace(format_named(weights).pack(values, case.block), shape=(len(values), k))
    if case.weights == "ternary":
        scales = np.repeat(packed.scales[:, :1], packed.blocks, axis=1)
        packed = replace(packed, scales=scales)
    if case.halves:
        halves = packed.scales.astype(np.float16)
        halves[0] = np.float16(2.0**-24)  # the least there is
        halves[1::2] *= -1
        packed = replace(packed, scales=halves.astype(np.float32))
    return packed
