"""Binds a segment's nodes to kernels: the instructions of one program and its buffers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgerun.backends.base import CompileOptions
from edgerun.backends.cpu.buffers import Buffer, BufferPool
from edgerun.backends.cpu.weights import Prepared, WeightStore
from edgerun.graph.ir import Graph, Node
from edgerun.graph.mapped_file import forget_array
from edgerun.kernels.program import FRAME_WORDS, Instruction
from edgerun.kernels.registry import instruction

# Words of the frame; attention counts its units in those from ATTENTION on.
ONE, ROWS, LOGIT_ROWS, ANY_LOGITS, ATTENTION = range(5)


@dataclass(slots=True)
class Patch:
    """An argument that is known only when a cache is bound: ``block[index] = value(cache)``."""

    block: NDArray[np.int64]
    index: int
    value: Callable[[Any], int]


@dataclass(frozen=True, slots=True)
class Rounded:
    """A value rounded as a linear kernel wants it; without scales it is float32 again."""

    codes: Buffer
    scales: Buffer | None
    sums: Buffer | None
    blocks: int

    def buffers(self) -> list[Buffer]:
        """Its buffers."""
        return [one for one in (self.codes, self.scales, self.sums) if one is not None]

    def keys(self) -> set[str]:
        """Keys of its buffers."""
        return {buffer.key for buffer in self.buffers()}


@dataclass(frozen=True, slots=True)
class Rounding:
    """How a linear layer wants its input: by which kernel, with which blocks, how long a row."""

    kernel: str
    block: int
    padded_k: int


@dataclass(slots=True)
class Binder:
    """State while a segment is bound.

    Attributes:
        graph: the segment.
        options: threads, rows, cache.
        weights: prepared weights, shared with other phases.
        isa: instruction set of the kernels.
        shared: memory that nodes use one after the other, by a name of their choice.
        columns: which value a shared buffer holds the columns of.
        before_run: called before each run, when the batch lies in its buffers.
        kernels: names of those in use.
    """

    graph: Graph
    options: CompileOptions
    weights: WeightStore
    isa: str
    instructions: list[Instruction] = field(default_factory=list)
    patches: list[Patch] = field(default_factory=list)
    before_run: list[Callable[[], None]] = field(default_factory=list)
    keep: list[Any] = field(default_factory=list)
    values: dict[str, Buffer] = field(default_factory=dict)
    rounded: dict[tuple[str, Rounding], Rounded] = field(default_factory=dict)
    shared: dict[str, Buffer] = field(default_factory=dict)
    columns: dict[str, str] = field(default_factory=dict)
    counted_by: dict[str, int] = field(default_factory=dict)
    kernels: set[str] = field(default_factory=set)

    pool: BufferPool = field(init=False)
    frame: NDArray[np.int64] = field(init=False)
    ids: NDArray[np.int32] = field(init=False)
    positions: NDArray[np.int32] = field(init=False)
    sequences: NDArray[np.int32] = field(init=False)
    logit_rows: NDArray[np.int32] = field(init=False)
    readers: dict[str, list[Node]] = field(init=False)
    last_use: dict[str, int] = field(init=False)

    def __post_init__(self) -> None:
        rows = self.options.max_rows
        self.pool = BufferPool(rows)
        self.frame = np.zeros(FRAME_WORDS, np.int64)
        self.frame[ONE] = 1
        self.ids, self.positions, self.sequences, self.logit_rows = (
            np.zeros(rows, np.int32) for _ in range(4)
        )
        self.readers = self.graph.consumers()
        self.last_use = {
            name: index for index, node in enumerate(self.graph.nodes) for name in node.inputs
        }
        end = len(self.graph.nodes)
        self.last_use.update({name: end for name in (*self.graph.inputs, *self.graph.outputs)})

    def emit(
        self,
        name: str,
        params: dict[str, Any],
        fields: dict[str, int],
        *,
        chunks: tuple[int, int, int],
        reads: set[str],
        writes: set[str],
        label: str,
    ) -> Instruction:
        """Appends an instruction."""
        made = instruction(
            name,
            params=params,
            fields=fields,
            chunks=chunks,
            reads=reads,
            writes=writes,
            label=label,
            progress=self.options.progress,
        )
        self.instructions.append(made)
        self.kernels.add(name)
        return made

    def prepared(self, node: Node) -> Prepared:
        """The weight of a linear node in the layout of its kernel."""
        constant = self.graph.constants[node.inputs[1]]
        return self.weights.prepare(constant, node.attrs["activations"])

    def vector(self, name: str) -> NDArray[np.float32]:
        """A small float32 constant, copied: mapped, it might hold two megabytes around it too."""
        constant = self.graph.array(name)
        copy = np.array(constant, np.float32)
        forget_array(constant)
        self.keep.append(copy)
        return copy

    def rows_address(self, counted_by: int) -> int:
        """Address of the number of rows of a value."""
        return int(self.frame.ctypes.data) + 8 * counted_by

    def new(self, value: str, width: int, counted_by: int) -> Buffer:
        """Takes a buffer for a value that the next instruction writes."""
        buffer = self.values[value] = self.pool.take(width)
        self.counted_by[value] = counted_by
        return buffer

    def dies_at(self, value: str, index: int) -> bool:
        """Whether node ``index`` is the last to read a value, so that it may overwrite it."""
        return self.last_use.get(value) == index and value not in self.graph.inputs

    def rename(self, old: str, new: str) -> Buffer:
        """Lets a value take over the buffer of one that ends here."""
        buffer = self.values[new] = self.values.pop(old)
        self.counted_by[new] = self.counted_by[old]
        return buffer

    def copy(self, source: str, name: str, label: str) -> Buffer:
        """Emits a copy of a value under a new name."""
        x, counted_by = self.values[source], self.counted_by[source]
        out = self.new(name, x.width, counted_by)
        every = np.arange(self.options.max_rows, dtype=np.int32)
        self.keep.append(every)
        fields = {
            "rows": self.rows_address(counted_by),
            "index": every.ctypes.data,
            "x": x.address,
            "x_stride": x.stride,
            "out": out.address,
            "out_stride": out.stride,
            "width": x.width,
        }
        self.emit(
            "select_rows",
            {},
            fields,
            chunks=(counted_by, 1, 1),
            reads={x.key},
            writes={out.key},
            label=f"{label}/copy",
        )
        return out

    def release(self, index: int) -> None:
        """Takes back the buffers of values that nothing after node ``index`` reads."""
        for value in [name for name, last in self.last_use.items() if last == index]:
            if value in self.values:
                self.pool.give(self.values.pop(value))
            for key in [key for key in self.rounded if key[0] == value]:
                for buffer in self.rounded.pop(key).buffers():
                    self.pool.give(buffer)
