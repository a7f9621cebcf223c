"""A small pattern language over graphs, used by the passes.

A pattern is a tree: ``Op("Mul", Var("x"), Op("Sigmoid", Var("x")))`` matches ``x * sigmoid(x)``.
``Var`` captures any value, the same name always the same value; ``Const`` captures a constant;
``Num`` matches a constant with given contents. Inputs are compared in order: the exporter writes
one exact form of everything (docs/bundle.md), so nothing is commutative here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np

from edgerun.graph.ir import Graph, Node


@dataclass(frozen=True, slots=True)
class Var:
    """Captures any value."""

    name: str


@dataclass(frozen=True, slots=True)
class Const:
    """Captures the name of a constant."""

    name: str


@dataclass(frozen=True, slots=True)
class Num:
    """Matches a constant whose elements equal ``value``."""

    value: float | tuple[float, ...]


class Op:
    """Matches a node by op, inputs and the attributes named; it may have no further inputs.

    The value is its first output unless ``output`` says another. Attributes that no pattern could
    name were dealt with before (``attributes.py``).
    """

    __slots__ = ("attributes", "inputs", "op", "output")

    def __init__(self, op: str, *inputs: Pattern, output: int = 0, **attributes: Any) -> None:
        self.op = op
        self.inputs = inputs
        self.output = output
        self.attributes = attributes


class PatternWriter:
    """Puts a pattern together from what a form calls for, see ``activations/base.py``."""

    def __call__(self, op: str, *inputs: Pattern) -> Pattern:
        """Matches a node of this op."""
        return Op(op, *inputs)

    def number(self, value: float) -> Pattern:
        """Matches a float32 constant of this value."""
        return Num(float(np.float32(value)))


Pattern: TypeAlias = Var | Const | Num | Op


class Match:
    """What a pattern captured."""

    def __init__(self) -> None:
        self.values: dict[str, str] = {}

    def __getitem__(self, name: str) -> str:
        return self.values[name]


class Matcher:
    """Matches patterns against one graph."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.producers: Mapping[str, Node] = graph.producers()

    @cached_property
    def consumers(self) -> Mapping[str, list[Node]]:
        """The nodes that read each value, which few passes ask for."""
        return self.graph.consumers()

    @cached_property
    def inputs(self) -> frozenset[str]:
        """Names of the graph's inputs."""
        return frozenset(self.graph.inputs)

    @cached_property
    def outputs(self) -> frozenset[str]:
        """Names of the graph's outputs."""
        return frozenset(self.graph.outputs)

    def match(self, value: str, pattern: Pattern) -> Match | None:
        """Matches the expression that computes ``value``; None when it has another form."""
        captured = Match()
        return captured if self._match(value, pattern, captured) else None

    def number(self, name: str) -> float | None:
        """The value of a constant of one element; None if it has another form."""
        constant = self.graph.constants.get(name)
        if not isinstance(constant, np.ndarray) or constant.size != 1:
            return None
        return float(constant.reshape(())[()])

    def numbers(self, match: Match, names: Iterable[str]) -> dict[str, float] | None:
        """The float32 values of constants of one element; None if one has another form."""
        values = {name: self.number(match[name]) for name in names}
        if None in values.values():
            return None
        return {k: float(np.float32(value)) for k, value in values.items() if value is not None}

    def _match(self, value: str, pattern: Pattern, captured: Match) -> bool:
        if isinstance(pattern, Op):
            return self._match_op(value, pattern, captured)
        if isinstance(pattern, Num):
            return self._equals(value, pattern.value)
        if isinstance(pattern, Const) and value not in self.graph.constants:
            return False
        return captured.values.setdefault(pattern.name, value) == value

    def _match_op(self, value: str, pattern: Op, captured: Match) -> bool:
        node = self.producers.get(value)
        if node is None or node.op != pattern.op or pattern.output >= len(node.outputs):
            return False
        if node.outputs[pattern.output] != value:
            return False
        count = len(pattern.inputs)
        if len(node.inputs) < count or any(node.inputs[count:]):
            return False
        if any(node.attrs.get(name) != value for name, value in pattern.attributes.items()):
            return False
        pairs = zip(node.inputs, pattern.inputs, strict=False)
        return all(self._match(name, pattern_input, captured) for name, pattern_input in pairs)

    def _equals(self, value: str, expected: float | tuple[float, ...]) -> bool:
        constant = self.graph.constants.get(value)
        if not isinstance(constant, np.ndarray) or constant.size > 16:
            return False
        return bool(np.array_equal(constant.reshape(-1), np.atleast_1d(np.asarray(expected))))
