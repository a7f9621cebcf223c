"""What a file in this folder says of its pass."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from edgerun.graph.attributes import Rules
from edgerun.graph.ir import Graph


@dataclass(frozen=True, slots=True)
class Pass:
    """A step from an ONNX graph to one of our ops.

    Attributes:
        order: passes run by this number: attention reads what rotary wrote, residuals what linear
            wrote, and so on. Forms of their own go anywhere between 10 and 80.
        rewrite: returns a new graph, and may add derived constants to the one it is given.
        reads: the attributes of ONNX ops that it compares or uses; a node with one that no pass
            reads is in nobody's form. Of an op that several passes name they say the same.
    """

    order: int
    rewrite: Callable[[Graph], Graph]
    reads: Mapping[str, Rules] = field(default_factory=dict)
