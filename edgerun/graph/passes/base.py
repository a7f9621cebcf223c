"""What a file in this folder says of its pass."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from edgerun.graph.ir import Graph


@dataclass(frozen=True, slots=True)
class Pass:
    """A step from an ONNX graph to one of our ops.

    Attributes:
        order: passes run by this number: attention reads what rotary wrote, residuals what linear
            wrote, and so on. Forms of their own go anywhere between 10 and 80.
        rewrite: returns a new graph, and may add derived constants to the one it is given.
    """

    order: int
    rewrite: Callable[[Graph], Graph]
