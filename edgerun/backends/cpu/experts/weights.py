"""Weights of experts as kernels find them, in slots that a table has the addresses of.

Either all experts of a model have a slot from the beginning, or they are read into the slots that
there are while programs run (``stream.py``).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from operator import mul
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from edgerun.backends.base import ExpertMemory
from edgerun.backends.cpu.experts.layout import BiasForm, Projection, SlotLayout, form_of
from edgerun.backends.cpu.weights import Prepared, has_row_scales
from edgerun.errors import InputError
from edgerun.formats.base import PackedWeight, has_half_scales
from edgerun.formats.stack import ExpertStack, Matrix
from edgerun.graph.ir import Graph, Node
from edgerun.graph.mapped_file import ArrayReader
from edgerun.kernels.lang.isa import Isa
from edgerun.kernels.layouts.stream import Arena

if TYPE_CHECKING:
    from edgerun.backends.cpu.experts.gate import Gate
    from edgerun.backends.cpu.experts.stream import ExpertStream
    from edgerun.backends.cpu.experts.words import LayerWords


@dataclass(frozen=True, slots=True)
class ExpertWeights:
    """The weights of a layer's experts.

    Attributes:
        layout: of a slot.
        matrices: of gate, up and down.
        table: address of the slot of each expert, int64 ``[experts]``; 0 while it has none.
        memory: the slots, those of all layers where experts are read while programs run.
        words: of the layer, in that case.
        wave: experts that are computed together if a batch needs more than there are slots.
    """

    layout: SlotLayout
    matrices: tuple[Projection, ...]
    table: NDArray[np.int64]
    memory: Sequence[NDArray[np.uint8]] | NDArray[np.uint8]
    words: LayerWords | None = None
    wave: int = 0

    @classmethod
    def of(cls, layout: SlotLayout, memory: Sequence[NDArray[np.uint8]]) -> ExpertWeights:
        """Takes all experts, which lie in their slots."""
        table = np.array([slot.ctypes.data for slot in memory], np.int64)
        return cls(layout, layout.projections(memory[0]), table, memory)

    @property
    def slots(self) -> int:
        """How many experts have room in memory."""
        return len(self.memory)

    def expert(self, number: int) -> tuple[Prepared, ...]:
        """The matrices of an expert, where all are in memory."""
        assert self.words is None
        return tuple(each.weight for each in self.layout.projections(self.memory[number]))


class ExpertStore:
    """Prepares the experts of a model, layer by layer.

    Attributes:
        stream: reads experts while programs run; None if all of them are in memory.
    """

    def __init__(self, isa: Isa, memory: ExpertMemory | None = None) -> None:
        """Prepares them for one instruction set, in memory that may be limited."""
        self._isa = isa
        self._memory = memory
        self._arena = Arena()
        self._reader = ArrayReader()
        self._layers: dict[tuple[Any, ...], tuple[Sequence[ExpertStack], ExpertWeights]] = {}
        self.stream: ExpertStream | None = None

    @property
    def nbytes(self) -> int:
        """Bytes of all slots."""
        layers = [layer for _, layer in self._layers.values() if layer.words is None]
        resident = sum(slot.nbytes for layer in layers for slot in layer.memory)
        return resident + (0 if self.stream is None else self.stream.slots.nbytes)

    def lengths(self) -> Collection[int]:
        """How many elements rows of matrices have that are no constants of a graph: none are."""
        return ()

    def slot_bytes(self, graph: Graph, node: Node) -> int:
        """Bytes that an expert of a layer takes in memory."""
        return self._layout(_Layer.of(graph, node), sampled=True).nbytes

    def admit(self, graph: Graph) -> None:
        """Shares the memory out among the experts of a graph, before they are prepared.

        Raises:
            InputError: it does not suffice for one row.
        """
        layers = [_Layer.of(graph, node) for node in graph.nodes if node.op == "experts"]
        layers = [layer for layer in layers if layer.has_choice]
        if self._memory is None or self.stream is not None or not layers:
            return
        slot_bytes, most = self._memory.slot_bytes, self._memory.top_k
        if not slot_bytes:
            sizes = [self._layout(layer, sampled=True).nbytes for layer in layers]
            if sum(map(mul, sizes, (layer.experts for layer in layers))) <= self._memory.nbytes:
                return
            slot_bytes, most = max(sizes), max(layer.top_k for layer in layers)
        slots = self._memory.nbytes // slot_bytes
        if slots < most:
            raise InputError(
                f"{self._memory.nbytes} bytes are too few for experts: a token needs {most} of a "
                f"layer in memory at a time; allow {most * slot_bytes} or more"
            )
        from edgerun.backends.cpu.experts.stream import ExpertStream  # for few models

        self.stream = ExpertStream(self._memory, slots, slot_bytes, most)

    def prepare(self, graph: Graph, node: Node) -> ExpertWeights:
        """Returns a layer's stacks in the layouts that their kernels read.

        Raises:
            BackendError: the file that they lie in has become shorter.
            BundleError: a scale or an element is infinite or no number.
        """
        layer = _Layer.of(graph, node)
        key = (*map(id, layer.stacks), layer.activations)
        if key not in self._layers:
            is_streamed = self.stream is not None and layer.has_choice
            prepare = self._streamed if is_streamed else self._resident
            self._layers[key] = layer.stacks, prepare(layer)
        return self._layers[key][1]

    def reads(self, graph: Graph, node: Node) -> bool:
        """Whether a node has experts that are read while programs run."""
        is_layer = self.stream is not None and node.op == "experts"
        return is_layer and _Layer.of(graph, node).has_choice

    def add_gate(self, words: LayerWords, gate: Gate) -> None:
        """Takes what says where the rows of a layer go whose experts are read."""
        assert self.stream is not None
        self.stream.add_gate(words, gate)

    def rest(self) -> None:
        """Gives back the memory that is needed only while weights are prepared."""
        self._reader.clear()

    def close(self) -> None:
        """Ends the threads that read experts."""
        if self.stream is not None:
            self.stream.close()

    def _resident(self, layer: _Layer) -> ExpertWeights:
        layout = self._layout(layer)
        memory = []
        for parts in zip(*(stack.matrices for stack in layer.stacks), strict=True):
            memory.append(self._arena.zeros((layout.nbytes,)))
            layout.fill(memory[-1], parts, self._reader)
        return ExpertWeights.of(layout, memory)

    def _streamed(self, layer: _Layer) -> ExpertWeights:
        assert self.stream is not None
        layout, slots = self._layout(layer, sampled=True), self.stream.slots
        if layout.nbytes > slots.shape[1]:
            raise InputError(
                f"the experts of {layer.name} have {layout.nbytes} bytes and those of layers "
                f"before it {slots.shape[1]}: load this model without a limit to the memory of "
                "experts"
            )
        words = self.stream.add_layer(layer.name, layout, layer.stacks)
        matrices = layout.projections(slots[0])
        return ExpertWeights(layout, matrices, words.table, slots, words, self.stream.wave)

    def _layout(self, layer: _Layer, *, sampled: bool = False) -> SlotLayout:
        """The layout that suits all experts, or if ``sampled`` the first of each stack."""
        forms = []
        for stack in layer.matrices:
            looked_at = stack.matrices[:1] if sampled else stack.matrices
            row_scale = layer.activations == "int8_row" and all(
                map(self._has_row_scales, looked_at)
            )
            # What is not in memory was not looked at; its scales may be any.
            halves = not sampled and not row_scale and layer.activations != "float"
            halves = halves and all(map(self._has_half_scales, looked_at))
            first = stack.matrices[0]
            forms.append(
                form_of(first, layer.activations, self._isa, row_scale=row_scale, halves=halves)
            )
        biases = [None if bias is None else BiasForm(bias.shape[1]) for bias in layer.biases]
        gate, up = layer.matrices[:2]
        return SlotLayout(forms, biases, gate_is_up=gate is up)

    def _has_row_scales(self, matrix: Matrix) -> bool:
        return not isinstance(matrix, PackedWeight) or has_row_scales(
            replace(matrix, scales=self._reader.read(matrix.scales))
        )

    def _has_half_scales(self, matrix: Matrix) -> bool:
        return isinstance(matrix, PackedWeight) and has_half_scales(
            replace(matrix, scales=self._reader.read(matrix.scales))
        )


def stacks_of(graph: Graph, node: Node) -> tuple[ExpertStack, ...]:
    """The matrices of a layer of experts: gate, up and down."""
    return _Layer.of(graph, node).matrices


@dataclass(frozen=True, slots=True)
class _Layer:
    """What a node says of its experts: their stacks by gate, up and down."""

    name: str
    activations: str
    top_k: int
    matrices: tuple[ExpertStack, ...]
    biases: tuple[ExpertStack | None, ...]

    @classmethod
    def of(cls, graph: Graph, node: Node) -> _Layer:
        """That of a node."""
        constants = [graph.constants.get(name) for name in node.inputs[2:]]
        stacks = [each if isinstance(each, ExpertStack) else None for each in constants]
        matrices = tuple(each for each in stacks[:3] if each is not None)
        biases = (*stacks[3:], None, None, None)[:3]
        attributes = node.attrs
        return cls(node.name, str(attributes["activations"]), attributes["top_k"], matrices, biases)

    @property
    def stacks(self) -> list[ExpertStack]:
        """All that belongs to an expert: matrices, then the biases that there are."""
        return [*self.matrices, *(bias for bias in self.biases if bias is not None)]

    @property
    def experts(self) -> int:
        """How many there are."""
        return len(self.matrices[0].matrices)

    @property
    def has_choice(self) -> bool:
        """Whether there are several; one alone is every token's, and stays in memory."""
        return self.matrices[0].has_choice
