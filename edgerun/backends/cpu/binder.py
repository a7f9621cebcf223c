"""Binds a segment's nodes to kernels: the instructions of one program and its buffers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from edgerun.backends.base import CompileOptions, Shape
from edgerun.backends.cpu.buffers import Buffer, BufferPool
from edgerun.backends.cpu.emit.emitter import Emitter
from edgerun.backends.cpu.experts.weights import ExpertStore
from edgerun.backends.cpu.operands import Argument, checked_arguments
from edgerun.backends.cpu.page_tiles import PageTiles
from edgerun.backends.cpu.strips import Areas
from edgerun.backends.cpu.weights import Prepared, WeightStore
from edgerun.graph.ir import Graph, Node
from edgerun.graph.mapped_file import read_array
from edgerun.kernels.jit.service import compiled
from edgerun.kernels.lang.isa import Isa
from edgerun.kernels.run.instructions import Code, Instruction, instruction
from edgerun.kernels.run.program import FRAME_WORDS
from edgerun.machine.row_times import BlockPath

# Words of the frame; RUNS are those of rows of one sequence, where a node needs to know, and
# attention counts its units in the words from ATTENTION on.
ONE, ROWS, LOGIT_ROWS, ANY_LOGITS, RUNS, ATTENTION = range(6)
Preparation: TypeAlias = Callable[[], None]
ROWS_AT_ONCE = 8  # that a thread takes: a row may take less time than two threads need to share it


@dataclass(slots=True)
class Patch:
    """An argument that is known only when a cache is bound: ``block[index] = value(cache)``."""

    block: NDArray[np.int64]
    index: int
    value: Callable[[Any], int]


@dataclass(frozen=True, slots=True)
class Stage:
    """A part of a program, which many rows can go through before any goes on (``stages.py``).

    Attributes:
        first: its first instruction.
        taken: buffers that hold something when it begins, each with the word of the frame that
            counts its rows.
    """

    first: int = 0
    taken: tuple[tuple[Buffer, int], ...] = ()


@dataclass(frozen=True, slots=True)
class Rounded:
    """A value rounded as a linear kernel wants it; without scales it is float32 again."""

    codes: Buffer
    scales: Buffer | None
    sums: Buffer | None
    blocks: int

    def buffers(self) -> list[Buffer]:
        """Its buffers."""
        return [part for part in (self.codes, self.scales, self.sums) if part is not None]

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
        shape: of the batches.
        options: the cache, and whom to tell about progress.
        weights: prepared weights, shared with other shapes.
        experts: those of layers of experts.
        isa: instruction set of the kernels.
        threads: that will run the program.
        emitters: how ops run, by name.
        areas: memory for the matrix unit; None without one, or without memory.
        regrouped: outputs of linear layers whose weights are to be regrouped (``regroup.py``).
        attends_fast: whether attention may be in bfloat16.
        page_tiles: memory for keys and values that are multiplied in bfloat16.
        row_paths: what multiplies blocks of rows, by family, where that was measured.
        shared: memory that nodes use one after the other, by a name of their choice.
        columns: which value a shared buffer holds the columns of.
        stages: of the program, from the first on.
        before_run: called before each run, when the batch lies in its buffers. Nothing that is
            called refers to the binder: weights would stay in memory after the model is closed.
        before_stage: likewise, but before runs of the stage of that number alone.
        keep: what later nodes look for, and what ``before_run`` uses.
        operands: memory that the instructions point to.
        kernels: names of those in use.
        calls: arguments of instructions that call other code, whose address is their first word.
        places: what nodes share, by its name or by sizes.
    """

    graph: Graph
    shape: Shape
    options: CompileOptions
    weights: WeightStore
    experts: ExpertStore
    isa: Isa
    threads: int
    emitters: Mapping[str, Emitter]
    areas: Areas | None
    regrouped: frozenset[str] = frozenset()
    attends_fast: bool = False
    page_tiles: PageTiles | None = None
    row_paths: Mapping[str, BlockPath] = field(default_factory=dict)
    instructions: list[Instruction] = field(default_factory=list)
    patches: list[Patch] = field(default_factory=list)
    stages: list[Stage] = field(default_factory=lambda: [Stage()])
    before_run: list[Preparation] = field(default_factory=list)
    before_stage: list[tuple[int, Preparation]] = field(default_factory=list)
    keep: list[Any] = field(default_factory=list)
    operands: list[NDArray[Any]] = field(default_factory=list)
    values: dict[str, Buffer] = field(default_factory=dict)
    rounded: dict[tuple[str, Rounding], Rounded] = field(default_factory=dict)
    shared: dict[str, Buffer] = field(default_factory=dict)
    columns: dict[str, str] = field(default_factory=dict)
    counted_by: dict[str, int] = field(default_factory=dict)
    kernels: set[str] = field(default_factory=set)
    calls: list[tuple[NDArray[np.int64], Code]] = field(default_factory=list)
    places: dict[str, Any] = field(default_factory=dict)

    pool: BufferPool = field(init=False)
    frame: NDArray[np.int64] = field(init=False)
    ids: NDArray[np.int32] = field(init=False)
    positions: NDArray[np.int32] = field(init=False)
    sequences: NDArray[np.int32] = field(init=False)
    logit_rows: NDArray[np.int32] = field(init=False)
    readers: dict[str, list[Node]] = field(init=False)
    producers: dict[str, Node] = field(init=False)
    last_use: dict[str, int] = field(init=False)
    _asked: tuple[NDArray[np.int32], NDArray[np.int32]] | None = None

    def __post_init__(self) -> None:
        rows = self.shape.rows
        self.pool = BufferPool(rows)
        self.frame = np.zeros(FRAME_WORDS, np.int64)
        self.frame[ONE] = 1
        self.ids, self.positions, self.sequences, self.logit_rows = (
            np.zeros(rows, np.int32) for _ in range(4)
        )
        self.readers, self.producers = self.graph.consumers(), self.graph.producers()
        self.last_use = {
            name: index for index, node in enumerate(self.graph.nodes) for name in node.inputs
        }
        end = len(self.graph.nodes)
        self.last_use.update({name: end for name in (*self.graph.inputs, *self.graph.outputs)})

    def emit(
        self,
        name: str,
        params: dict[str, Any],
        arguments: Mapping[str, Argument],
        *,
        chunks: tuple[int, int, int],
        reads: set[str],
        writes: set[str],
        label: str,
        rows: int = 0,
    ) -> Instruction:
        """Appends an instruction, and keeps its operands alive.

        Args:
            name: of the kernel.
            params: its compile-time constants.
            arguments: every one that it declares: numbers as numbers, addresses as the memory
                there.
            chunks: as of ``Instruction``.
            reads: keys of the buffers that it reads.
            writes: keys of the buffers that it writes.
            label: for traces.
            rows: the most rows it may be called for, if that is not the most rows of a batch.

        Raises:
            BackendError: the kernel would touch more memory than an operand has.
        """
        signature = compiled(name, self.options.progress, **params).signature
        sizes = {"rows": rows or self.shape.rows, **params}
        fields, operands = checked_arguments(name, signature, arguments, sizes)
        self.operands += operands
        step = instruction(
            name,
            params=params,
            fields=fields,
            chunks=chunks,
            reads=reads,
            writes=writes,
            label=label,
            at_once=ROWS_AT_ONCE if chunks in ((ROWS, 1, 1), (LOGIT_ROWS, 1, 1)) else 1,
        )
        self.instructions.append(step)
        self.kernels.add(name)
        return step

    def rows_of(self, counted_by: int) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
        """Positions and sequences of the rows of a value, filled in before each run."""
        if counted_by == ROWS:
            return self.positions, self.sequences
        if self._asked is None:
            self._asked = np.zeros_like(self.positions), np.zeros_like(self.sequences)
            self.before_run.insert(0, self._finding_asked(self._asked))
        return self._asked

    def _finding_asked(self, asked: tuple[NDArray[np.int32], NDArray[np.int32]]) -> Preparation:
        """What fills those in; it knows buffers alone, see ``before_run``."""
        frame, logit_rows, whole = self.frame, self.logit_rows, (self.positions, self.sequences)

        def find_asked() -> None:
            count = int(frame[LOGIT_ROWS])
            rows = logit_rows[:count]
            for selected, every in zip(asked, whole, strict=True):
                selected[:count] = every[rows]

        return find_asked

    def prepared(self, node: Node) -> Prepared:
        """The weight of a linear node in the layout of its kernel."""
        constant = self.graph.matrix(node.inputs[1])
        regroup = node.outputs[0] in self.regrouped
        return self.weights.prepare(constant, node.attrs["activations"], regroup=regroup)

    def vector(self, name: str) -> NDArray[np.float32]:
        """A small float32 constant, copied."""
        copy = read_array(self.graph.array(name)).astype(np.float32, copy=False)
        return copy

    def count(self, counted_by: int) -> NDArray[np.int64]:
        """The word of the frame that holds the number of rows of a value, int64 ``[1]``."""
        return self.frame[counted_by : counted_by + 1]

    def lanes_of(self, size: int) -> int:
        """Lanes of the widest float vector that divides ``size``, at least 1."""
        lanes = self.isa.float_lanes
        while size % lanes:
            lanes //= 2
        return lanes

    def new(self, value: str, width: int, counted_by: int, dtype: str = "float32") -> Buffer:
        """Takes a buffer for a value that the next instruction writes."""
        buffer = self.values[value] = self.pool.take(width, dtype)
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

    def over(self, source: str, name: str, index: int) -> Buffer:
        """The buffer for what node ``index`` makes of a value: its own, if it ends here."""
        if self.dies_at(source, index):
            return self.rename(source, name)
        return self.new(name, self.values[source].width, self.counted_by[source])

    def copy(self, source: str, name: str, label: str) -> Buffer:
        """Emits a copy of a value under a new name."""
        x, counted_by = self.values[source], self.counted_by[source]
        out = self.new(name, x.width, counted_by)
        self.copy_into(out, 0, x, counted_by, f"{label}/copy")
        return out

    def copy_into(self, out: Buffer, first: int, x: Buffer, counted_by: int, label: str) -> None:
        """Emits a copy of rows to the elements from ``first`` on of those of another buffer."""
        every = np.arange(self.shape.rows, dtype=np.int32)
        arguments: dict[str, Argument] = {
            "rows": self.count(counted_by),
            "index": every,
            "x": x,
            "x_stride": x.stride,
            "out": out.array.reshape(-1)[first:],
            "out_stride": out.stride,
            "width": x.width,
        }
        self.emit(
            "select_rows",
            {},
            arguments,
            chunks=(counted_by, 1, 1),
            reads={x.key},
            writes={out.key},
            label=label,
        )

    def prepare_stage(self, prepare: Preparation) -> None:
        """Has something called before the stage runs that is being bound."""
        self.before_stage.append((len(self.stages) - 1, prepare))

    def begin_stage(self) -> None:
        """What follows is another stage; what nobody reads there was released."""
        taken = [(buffer, self.counted_by[name]) for name, buffer in self.values.items()]
        for (name, _), rounded in self.rounded.items():
            taken += [(buffer, self.counted_by[name]) for buffer in rounded.buffers()]
        self.columns.clear()  # they are those of other rows when the stage begins
        self.stages.append(Stage(len(self.instructions), tuple(taken)))

    def release(self, index: int) -> None:
        """Takes back the buffers of values that nothing after node ``index`` reads."""
        for value in [name for name, last in self.last_use.items() if last == index]:
            if value in self.values:
                self.pool.give(self.values.pop(value))
            for key in [key for key in self.rounded if key[0] == value]:
                for buffer in self.rounded.pop(key).buffers():
                    self.pool.give(buffer)
