"""What a file in this folder says of the op that it is named after."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
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
        cached: whether all weights stay in the processor's cache from call to call.
        regrouped: bytes of the other weights of linear layers that have such for so many rows, by
            the names of their own.
        attends_fast: whether so many rows may attend in bfloat16.
    """

    profile: MachineProfile
    threads: int
    trits: bool = False
    cached: bool = False
    regrouped: Mapping[str, int] = field(default_factory=dict)
    attends_fast: bool = False

    def start_seconds(self, instructions: float = 1) -> float:
        """Time to start so many kernels on all threads."""
        return instructions * self.profile.instruction_s(self.threads)

    def read_seconds(self, nbytes: float) -> float:
        """Time to stream so many bytes from memory."""
        return nbytes / self.profile.read_speed(self.threads)

    def stream_seconds(self, nbytes: float) -> float:
        """Time to stream weights of so many bytes from where they lie."""
        return 0.0 if self.cached else self.read_seconds(nbytes)

    def work_seconds(self, work: float, kind: str, rows: int) -> float:
        """Time for so many multiply-adds or elements, by kernels of a family, of so many rows."""
        return self._shared_seconds(work, self.profile.rate(kind, rows))

    def attention_seconds(
        self, work: float, head_dim: int, rows: int, *, fast: bool = False
    ) -> float:
        """Time to attend with heads of a size, for so many multiply-adds and so many rows."""
        return self._shared_seconds(work, self.profile.attention_rate(head_dim, rows, fast=fast))

    def element_seconds(self, elements: float, kind: str, rows: int) -> float:
        """Time for so many elements, by kernels of a kind; none if that was not measured."""
        is_measured = kind in self.profile.other_rates
        return self.work_seconds(elements, kind, rows) if is_measured else 0.0

    def _shared_seconds(self, work: float, rate: float) -> float:
        return work / (rate * self.threads / self.profile.threads)


Emit: TypeAlias = "Callable[[Binder, Node, int], None]"


def _any_node(graph: Graph, node: Node) -> Support:
    return Support(True)


def element_cost(kind: str) -> Callable[[Graph, Node, Shape, Speeds], float]:
    """The cost of an op that does a little with every element, by a kernel of a kind."""

    def cost(graph: Graph, node: Node, shape: Shape, speeds: Speeds) -> float:
        rates = speeds.profile.other_rates
        if ELEMENTS not in rates:
            return speeds.start_seconds(1 + shape.rows / ROWS_A_START)
        width = sum(value.width for value in output_shapes(graph, node, graph.shapes).values())
        nearest = kind if kind in rates else ELEMENTS
        elements = speeds.element_seconds(shape.rows * width, nearest, shape.rows)
        return speeds.start_seconds() + elements

    return cost


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
    cost: Callable[[Graph, Node, Shape, Speeds], float] = element_cost(ELEMENTS)
    rounding: Callable[[Binder, Node], Rounding | None] = _as_it_is
