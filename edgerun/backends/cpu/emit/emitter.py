"""What a file in this folder says of the op that it is named after."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from edgerun.backends.base import Shape, Support
from edgerun.graph.ir import Graph, Node
from edgerun.graph.shapes import output_shapes
from edgerun.machine.devices import ELEMENTS
from edgerun.machine.profile import MachineProfile

if TYPE_CHECKING:
    from edgerun.backends.cpu.binder import Binder, Rounding

ROWS_A_START = 16  # of a kernel with little to do, in the time that starting it takes


@dataclass(frozen=True, slots=True)
class Speeds:
    """How fast this machine is, for estimates.

    Attributes:
        profile: measured or nominal speeds.
        threads: that work.
        trits: whether ternary weights lie in memory at 1.6 bits.
    """

    profile: MachineProfile
    threads: int
    trits: bool = False

    def start_seconds(self) -> float:
        """Time to start a kernel on all threads."""
        return self.profile.instruction_s(self.threads)

    def read_seconds(self, nbytes: float) -> float:
        """Time to stream so many bytes from memory."""
        return nbytes / self.profile.read_speed(self.threads)

    def multiply_seconds(self, macs: float, family: str, rows: int) -> float:
        """Time for so many multiply-adds or elements, by kernels of a family, of so many rows."""
        rate = self.profile.rate(family, rows)
        return macs / (rate * self.threads / self.profile.threads)


Emit: TypeAlias = "Callable[[Binder, Node, int], None]"


def _any_node(graph: Graph, node: Node) -> Support:
    return Support(True)


def _starting(graph: Graph, node: Node, shape: Shape, speeds: Speeds) -> float:
    start = speeds.start_seconds()
    if ELEMENTS not in speeds.profile.other_rates:
        return start * (1 + shape.rows / ROWS_A_START)
    width = sum(value.width for value in output_shapes(graph, node, graph.shapes).values())
    return start + speeds.multiply_seconds(shape.rows * width, ELEMENTS, shape.rows)


def _as_it_is(binder: Binder, node: Node) -> None:
    return None


@dataclass(frozen=True, slots=True)
class Emitter:
    """How the CPU runs an op.

    Attributes:
        emit: appends the kernel calls of a node; the last argument is its place in the segment.
        supports: whether there are kernels for a node.
        cost: seconds that a node will take.
        rounding: the form in which a node reads its first input; None for the plain value.
    """

    emit: Emit
    supports: Callable[[Graph, Node], Support] = _any_node
    cost: Callable[[Graph, Node, Shape, Speeds], float] = _starting
    rounding: Callable[[Binder, Node], Rounding | None] = _as_it_is
