"""A layer of experts on the processor, and where its weights lie."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from edgerun.backends.base import CompileOptions, Executable, Shape
from edgerun.backends.cpu import CpuBackend
from edgerun.backends.cpu.experts.layout import SlotLayout
from edgerun.graph.ir import Graph, Node
from edgerun.graph.shapes import input_shapes
from edgerun.offload.places import F32, I64, one_hot
from edgerun.offload.sharing.cuts import cut_program
from edgerun.offload.sharing.device import U8, WHOLE
from edgerun.state import Batch, SequenceStore

MOST_BATCH_ROWS = 64  # of batches that are kept


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
    _compile: Callable[[str, tuple[int, int]], Executable]
    _parts: dict[tuple[str, tuple[int, int]], Executable] = field(default_factory=dict)
    _batches: dict[int, Batch] = field(default_factory=dict)  # by their rows

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
        """Compiles the processor's share and finds the weights that it prepared."""
        cpu.experts.admit(segment)
        top_k, weights = node.attrs["top_k"], cpu.experts.prepare(segment, node)
        assert weights.words is None, "the back-end shares no experts that are read from the disk"
        each = node.replace(attrs={**node.attrs, "top_k": 1})
        # It gets rows of its own, whichever of the batch's the layer sees.
        shapes = {
            name: replace(value, selected=False) for name, value in input_shapes(segment).items()
        }
        graph = Graph([each], [*node.inputs[:2]], [*node.outputs], segment.constants, shapes=shapes)
        rows = shape.rows * top_k
        places = cpu.compile(graph, Shape.of(rows), options)
        compile_part = partial(cut_program, cpu, each, segment.constants, rows, options)
        slots = list(weights.memory)
        return cls(number, node, slots, weights.layout, places, compile_part)

    def multiply(
        self,
        x: F32,
        experts: I64,
        cache: SequenceStore,
        op: str = WHOLE,
        panels: tuple[int, int] = (0, 0),
    ) -> F32:
        """Rows through an expert each, on the processor; valid until the next call.

        Args:
            x: float32 ``[rows, width]``.
            experts: of each row.
            cache: of the states that the programs were compiled for.
            op: ``WHOLE``, or a product of experts that are cut, and of that
            panels: the first of its outputs, and that before which they end.
        """
        program = self.places
        if op != WHOLE:
            if (op, panels) not in self._parts:
                self._parts[op, panels] = self._compile(op, panels)
            program = self._parts[op, panels]
        names, rows = self.node.inputs, len(x)
        routes = one_hot(experts, self.experts)
        batch = self._batches.get(rows)
        if batch is None:
            batch = Batch.of([0] * rows, 0, 0, logits="none")
            if rows <= MOST_BATCH_ROWS:
                self._batches[rows] = batch
        outputs = program(batch, cache, {names[0]: x, names[1]: routes})
        (out,) = outputs.values()
        return out

    def close(self) -> None:
        """Closes the programs."""
        for program in (self.places, *self._parts.values()):
            program.close()

    @property
    def experts(self) -> int:
        """How many there are."""
        return len(self.slots)

    @property
    def shape(self) -> tuple[int, int]:
        """Width of a row, and of an expert."""
        width, hidden = self.layout.projections(self.slots[0])[0].weight.shape
        return hidden, width
