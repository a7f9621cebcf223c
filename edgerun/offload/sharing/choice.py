"""Whether layers are to be shared at all: what a call is expected to take with and without."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from edgerun.backends.base import Phase, Shape
from edgerun.backends.cpu import CpuBackend
from edgerun.backends.cpu.experts.weights import stacks_of
from edgerun.graph.ir import Graph, Node
from edgerun.graph.shapes import value_shapes
from edgerun.offload.sharing.outlook import Call, Outlook, outlook

if TYPE_CHECKING:
    from edgerun.offload.sharing.backend import SharingBackend


@dataclass(frozen=True)
class Kind:
    """What layers have in common that are alike.

    Attributes:
        experts: of a layer.
        nbytes: of one.
        shape: width of a row, and of an expert.
        attributes: of the node.
    """

    experts: int
    nbytes: int
    shape: tuple[int, int]
    attributes: tuple[tuple[str, Any], ...]

    @classmethod
    def of(cls, cpu: CpuBackend, graph: Graph, node: Node) -> Kind:
        """Of a layer."""
        experts, width, hidden = stacks_of(graph, node)[0].shape
        attributes = tuple(sorted(node.attrs.items()))
        return cls(experts, cpu.expert_bytes(graph, node), (hidden, width), attributes)

    def is_like(self, other: Kind) -> bool:
        """Whether slots for the other take its experts, as ``Session.takes`` says."""
        mine, others = ({**dict(each.attributes), "top_k": 1} for each in (self, other))
        return (self.nbytes, self.shape, mine) == (other.nbytes, other.shape, others)

    def call(self, rows: int, layer_s: float) -> Call:
        """What a call of so many rows needs of a layer that takes so long on the processor."""
        return Call.of(self.experts, dict(self.attributes)["top_k"], rows, layer_s)


@dataclass(frozen=True)
class Room:
    """Room on a device, for layers like the first one.

    Attributes:
        first: the kind of that layer.
        slots: for experts.
        experts: of all layers like it.
    """

    first: Kind
    slots: int
    experts: int

    @classmethod
    def of(cls, backend: SharingBackend, kinds: Sequence[Kind]) -> Room:
        """Of all layers of a call.

        Raises:
            BackendError: there is no room for an expert.
        """
        first = kinds[0]
        experts = sum(kind.experts for kind in kinds if kind.is_like(first))
        return cls(first, backend.slots(first.nbytes), experts)

    def share(self, kind: Kind) -> float:
        """Of a layer's experts that the device has."""
        return min(1.0, self.slots / self.experts) if kind.is_like(self.first) else 0.0


@dataclass(frozen=True, slots=True)
class Choice:
    """What a call of a whole model is expected to take.

    Attributes:
        rows: of the call.
        alone_s: on the processor.
        shared_s: if its layers of experts are shared.
        around_s: of that, launches, waking threads and bookkeeping.
    """

    rows: int
    alone_s: float
    shared_s: float
    around_s: float

    @classmethod
    def of(
        cls,
        backend: SharingBackend,
        cpu: CpuBackend,
        graph: Graph,
        nodes: Sequence[Node],
        shape: Shape,
    ) -> Choice:
        """Of a graph of which some nodes can be shared.

        Raises:
            BackendError: the device has no room for an expert.
        """
        calls = {
            node.name: (own.rows, cpu.cost(graph, node, own)) for node, own in shaped(graph, shape)
        }
        kinds = [Kind.of(cpu, graph, node) for node in nodes]
        room, outlooks = Room.of(backend, kinds), dict[tuple[Kind, int, float], Outlook]()
        alone_s, shared_s, around_s = sum(cost_s for _, cost_s in calls.values()), 0.0, 0.0
        for node, kind in zip(nodes, kinds, strict=True):
            rows, layer_s = calls[node.name]
            key = kind, rows, layer_s
            if key not in outlooks:
                outlooks[key] = layer_outlook(
                    backend, kind, room, replace(shape, rows=rows), layer_s
                )
            shared_s += outlooks[key].divided_s - layer_s
            around_s += outlooks[key].around_s
        return cls(shape.rows, alone_s, alone_s + shared_s, around_s)

    @property
    def is_shared(self) -> bool:
        """Whether sharing is expected to be faster."""
        return self.shared_s < self.alone_s

    def __str__(self) -> str:
        """Both figures, in a sentence."""
        faster = "sharing" if self.is_shared else "the processor alone"
        figures = sorted((self.alone_s, self.shared_s))
        first, second = (f"{1e3 * seconds:.3g} ms" for seconds in figures)
        what = "a token" if self.rows == 1 else f"for {self.rows} rows"
        around = f"launches and bookkeeping {1e3 * self.around_s:.3g}"
        return f"{faster} is faster: {first} {what} against {second} ({around})"


def shaped(graph: Graph, shape: Shape) -> Iterator[tuple[Node, Shape]]:
    """Nodes with their shapes: of a prompt's rows those see one whose logits are wanted."""
    late, shapes = replace(shape, rows=1), value_shapes(graph)
    for node in graph.nodes:
        is_late = shape.phase is Phase.PREFILL and shapes[node.outputs[0]].selected
        yield node, late if is_late else shape


def layer_outlook(
    backend: SharingBackend, kind: Kind, room: Room, shape: Shape, layer_s: float
) -> Outlook:
    """What a layer is expected to take that takes so long on the processor alone."""
    estimates, _ = backend.costs(kind.shape, kind.nbytes, shape.phase)
    return outlook(kind.call(shape.rows, layer_s), room.share(kind), room.slots, estimates)
