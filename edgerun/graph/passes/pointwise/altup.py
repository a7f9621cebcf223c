"""Residual streams beside each other, ``[.., .., parts, width]``, and what AltUp does with them."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgerun.graph.attributes import Read, Rules
from edgerun.graph.ir import FreeNames, Graph, Node
from edgerun.graph.match import Const, Match, Matcher, Num, Op, Var
from edgerun.graph.passes.base import Pass

MOST_PARTS = 64  # models have four; pair by pair, buffers grow with their square

_FIRST = Op("Gather", Var("streams"), Const("index"), axis=2)
_PREDICTED = Op("MatMul", Op("Reshape", Var("coefs"), Const("shape")), Var("streams"))
_CHANGE = Op("Unsqueeze", Op("Sub", Var("activated"), _FIRST), Num(2))
_CORRECTED = Op("Add", Var("streams"), Op("Mul", _CHANGE, Op("Unsqueeze", Var("coefs"), Num(3))))
_OTHERS = Op("Mul", Op("Unsqueeze", Var("row"), Num(2)), Const("others"))
_ADDED = Op("Add", Var("streams"), _OTHERS)


def fuse_streams(graph: Graph) -> Graph:
    """Rewrites values that are joined to streams, and what is made of those."""
    streams = _Streams(graph)
    return graph.with_nodes(new for node in graph.nodes for new in streams.rewrite(node))


class _Streams:
    """The values of a graph that are streams, as far as its nodes were rewritten."""

    def __init__(self, graph: Graph) -> None:
        self._matcher = Matcher(graph)
        self._sizes: dict[str, tuple[int, int]] = {}  # parts and width by name
        self._obsolete: set[str] = set()  # values that an earlier node makes now
        self._rewrites = {
            "Reshape": self._join,
            "MatMul": self._predict,
            "Gather": self._part,
            "Add": self._add,
        }

    @cached_property
    def _free(self) -> FreeNames:
        return FreeNames(self._matcher.graph)

    def rewrite(self, node: Node) -> list[Node]:
        """What stands in the place of a node."""
        if node.outputs[0] in self._obsolete:
            return []
        rewrite = self._rewrites.get(node.op)
        return (rewrite and rewrite(node)) or [node]

    def _join(self, node: Node) -> list[Node]:
        """Values of equal width, one behind the other, pair by pair."""
        source = self._matcher.producers.get(node.inputs[0])
        shape = self._sizes_of(node.inputs[1])
        if source is None or source.op != "Concat" or source.attrs["axis"] != -1:
            return []
        count, joined = len(source.inputs), source.inputs[0]
        if not 2 <= count <= MOST_PARTS or len(shape) != 4 or shape[:3] != [0, 0, count]:
            return []
        nodes = []
        for number, name in enumerate(source.inputs[1:], 2):
            last = number == count
            output = node.outputs[0] if last else self._free.take(f"{node.outputs[0]}/{number}")
            label = node.name if last else self._free.take(f"{node.name}/{number}")
            nodes.append(Node("concat", label, (joined, name), (output,)))
            joined = output
        self._sizes[joined] = count, shape[3]
        return nodes

    def _predict(self, node: Node) -> list[Node]:
        match = self._matcher.match(node.outputs[0], _PREDICTED)
        parts, width = self._size(match)
        if match is None or self._sizes_of(match["shape"]) != [0, 0, parts, parts]:
            return []
        self._sizes[node.outputs[0]] = parts, width
        inputs = match["streams"], match["coefs"]
        return [node.replace(op="altup_predict", inputs=inputs, attrs={"parts": parts})]

    def _part(self, node: Node) -> list[Node]:
        match = self._matcher.match(node.outputs[0], _FIRST)
        parts, width = self._size(match)
        number = None if match is None else self._number(match["index"])
        if match is None or number is None or not 0 <= number < parts:
            return []
        attrs = {"parts": parts, "width": width, "number": number + 1}
        return [node.replace(op="row_part", inputs=(match["streams"],), attrs=attrs)]

    def _add(self, node: Node) -> list[Node]:
        match = self._matcher.match(node.outputs[0], _ADDED)
        parts, width = self._size(match)
        if match is None or not parts:
            return self._correct(node)
        others, expected = self._constant(match["others"]), [[0], *[[1]] * (parts - 1)]
        if others is None or others.shape != (parts, 1) or others.tolist() != expected:
            return []
        self._sizes[node.outputs[0]] = parts, width
        inputs = match["row"], match["streams"]
        return [node.replace(op="add_to_others", inputs=inputs, attrs={"parts": parts})]

    def _correct(self, node: Node) -> list[Node]:
        match = self._matcher.match(node.outputs[0], _CORRECTED)
        parts, width = self._size(match)
        if match is None or not parts or self._number(match["index"]) != 0:
            return []
        streams = node.outputs[0]
        self._sizes[streams] = parts, width
        first, *scale = self._first_of(streams)
        self._obsolete.add(first)
        inputs = match["activated"], match["streams"], match["coefs"], *scale
        outputs, attrs = (streams, first), {"parts": parts}
        return [node.replace(op="altup_correct", inputs=inputs, outputs=outputs, attrs=attrs)]

    def _first_of(self, streams: str) -> tuple[str, ...]:
        """What is made of the first part: its name, and the vector that it is multiplied by."""
        consumers = self._matcher.consumers
        for node in consumers.get(streams, []):
            match = self._matcher.match(node.outputs[0], _FIRST)
            if match is None or self._number(match["index"]) != 0:
                continue
            readers = consumers.get(node.outputs[0], [])
            scales = [
                (reader.outputs[0], reader.inputs[1])
                for reader in readers
                if reader.op == "Mul" and self._is_vector(reader.inputs[1])
            ]
            return scales[0] if scales else (node.outputs[0],)
        return (self._free.take(f"{streams}/first"),)

    def _size(self, match: Match | None) -> tuple[int, int]:
        """Parts and width of the streams of a match; zeros if they are none."""
        return (0, 0) if match is None else self._sizes.get(match["streams"], (0, 0))

    def _is_vector(self, name: str) -> bool:
        constant = self._constant(name)
        return constant is not None and constant.ndim == 1

    def _number(self, name: str) -> int | None:
        """A whole number without axes; None if a constant has another form."""
        constant = self._constant(name)
        if constant is None or constant.ndim or constant.dtype.kind != "i":
            return None
        return int(constant)

    def _sizes_of(self, name: str) -> list[int]:
        """A constant shape; empty where there is none."""
        constant = self._constant(name)
        if constant is None or constant.ndim != 1 or constant.dtype.kind != "i":
            return []
        return [int(size) for size in constant]

    def _constant(self, name: str) -> NDArray[Any] | None:
        """A plain constant; None for a value or a packed matrix."""
        constant = self._matcher.graph.constants.get(name)
        return constant if isinstance(constant, np.ndarray) else None


# From the operator specifications of ONNX (opset 23).
READS: Mapping[str, Rules] = {
    "Concat": {"axis": Read(int, needed=True)},
    "Gather": {"axis": Read(int, 0)},
    "Reshape": {"allowzero": 0},
}
PASS = Pass(47, fuse_streams, READS)
