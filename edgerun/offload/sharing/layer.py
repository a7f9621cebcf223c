"""A layer of experts on the processor, and where its weights lie."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from edgerun.backends.base import CompileOptions, Executable, Shape
from edgerun.backends.cpu import CpuBackend
from edgerun.backends.cpu.experts.layout import SlotLayout
from edgerun.errors import UnsupportedError
from edgerun.graph.ir import Graph, Node
from edgerun.graph.shapes import input_shapes
from edgerun.offload.sharing.device import U8


@dataclass(frozen=True)
class Layer:
    """A layer of experts on the processor.

    Attributes:
        number: among those of the model.
        node: of the graph.
        slots: what belongs to each expert, as kernels read it.
        layout: of a slot.
        places: multiplies rows of which each goes to one expert.
    """

    number: int
    node: Node
    slots: Sequence[U8]
    layout: SlotLayout
    places: Executable

    @classmethod
    def of(
        cls,
        number: int,
        node: Node,
        segment: Graph,
        shape: Shape,
        cpu: CpuBackend,
        options: CompileOptions,
    ) -> Layer:
        """Compiles the processor's share and finds the weights that it prepared.

        Raises:
            UnsupportedError: they are not all in memory.
        """
        cpu.experts.admit(segment)
        top_k, weights = node.attrs["top_k"], cpu.experts.prepare(segment, node)
        if weights.words is not None:
            raise UnsupportedError(
                "a device gets experts from memory, which has not room for all of them: "
                "allow more memory for experts, or leave the limit out"
            )
        each = node.replace(attrs={**node.attrs, "top_k": 1})
        # It gets rows of its own, whichever of the batch's the layer sees.
        shapes = {
            name: replace(value, selected=False) for name, value in input_shapes(segment).items()
        }
        graph = Graph([each], [*node.inputs[:2]], [*node.outputs], segment.constants, shapes=shapes)
        places = cpu.compile(graph, Shape.of(shape.rows * top_k), options)
        return cls(number, node, list(weights.memory), weights.layout, places)

    @property
    def experts(self) -> int:
        """How many there are."""
        return len(self.slots)

    @property
    def shape(self) -> tuple[int, int]:
        """Width of a row, and of an expert."""
        width, hidden = self.layout.projections(self.slots[0])[0].weight.shape
        return hidden, width
