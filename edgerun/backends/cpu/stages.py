"""Long batches layer by layer: all their rows go through a stage of a program before the next.

Where experts are read while programs run, a batch that goes through the whole program some rows at
a time reads nearly all experts for each of these chunks. So the program is cut behind each layer of
such experts, where the fewest values are live: as a rule one, the residual stream. A stage runs for
one chunk after the other, and what is live behind it is kept for all rows.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from edgerun.backends.cpu.binder import LOGIT_ROWS, ROWS, Stage
from edgerun.graph.ir import Graph
from edgerun.graph.shapes import value_shapes
from edgerun.kernels.run.instructions import Instruction
from edgerun.state import Batch, TakeLogits

Values: TypeAlias = list[NDArray[Any]]  # what a stage takes, of all rows of a batch


def cuts_of(graph: Graph, layers: Sequence[int]) -> Collection[int]:
    """Numbers of the nodes behind which a program is cut.

    Args:
        graph: of the program.
        layers: numbers of its nodes whose weights are read while it runs; between two of them there
            is one cut.
    """
    carried = _carried(graph)
    return [min(range(here, there), key=carried.__getitem__) for here, there in pairwise(layers)]


def _carried(graph: Graph) -> list[int]:
    """How many elements of a row are live behind each node."""
    shapes, changes = value_shapes(graph), np.zeros(len(graph.nodes) + 1, np.int64)
    last_use = {name: index for index, node in enumerate(graph.nodes) for name in node.inputs}
    for index, node in enumerate(graph.nodes):
        for name in node.outputs:
            end = len(graph.nodes) if name in graph.outputs else last_use.get(name, index)
            changes[index] += shapes[name].width
            changes[end] -= shapes[name].width
    return [int(width) for width in np.cumsum(changes)]


def instructions_of(
    stages: Sequence[Stage], instructions: Sequence[Instruction]
) -> Iterator[Sequence[Instruction]]:
    """The instructions of each stage but the last, which stands for the end."""
    for stage, following in pairwise(stages):
        yield instructions[stage.first : following.first]


@dataclass(frozen=True, slots=True)
class Chunk:
    """Some rows of a batch, and where they and their logits begin in it.

    Attributes:
        batch: with these rows alone.
        starts: by the word of the frame that counts them.
    """

    batch: Batch
    starts: Mapping[int, int]

    def rows(self, counted_by: int) -> slice:
        """Where the rows of a value lie among those of the whole batch."""
        count = self.batch.rows if counted_by == ROWS else len(self.batch.logit_rows)
        start = self.starts[counted_by]
        return slice(start, start + count)


def chunks_of(batch: Batch, most: int) -> list[Chunk]:
    """A batch in chunks of at most so many rows."""
    chunks, logits = [], 0
    for start in range(0, batch.rows, most):
        part = batch.part(start, min(start + most, batch.rows))
        chunks.append(Chunk(part, {ROWS: start, LOGIT_ROWS: logits}))
        logits += len(part.logit_rows)
    return chunks


def room_for(stage: Stage, batch: Batch, before: Values) -> Values:
    """Arrays for what a stage takes, of all rows of a batch.

    They are those of the stage before it if that takes the like: of each chunk these are given back
    to their buffers before its new values are kept. Logits that are handed over need no room.
    """
    logit_rows = len(batch.logit_rows) if batch.take_logits is None else 0
    counts = {ROWS: batch.rows, LOGIT_ROWS: logit_rows}
    sizes = [
        ((counts[counted_by], buffer.width), buffer.array.dtype)
        for buffer, counted_by in stage.taken
    ]
    if [(array.shape, array.dtype) for array in before] == sizes:
        return before
    return [np.empty(shape, dtype) for shape, dtype in sizes]


def keep(stage: Stage, chunk: Chunk, arrays: Values, take: TakeLogits | None) -> None:
    """Copies what a stage takes out of its buffers, when a chunk has gone through the last one.

    Logits go to ``take`` instead, if there is such.
    """
    for array, (buffer, counted_by) in zip(arrays, stage.taken, strict=True):
        rows = chunk.rows(counted_by)
        values = buffer.array[: rows.stop - rows.start, : buffer.width]
        if take is None or counted_by != LOGIT_ROWS:
            array[rows] = values
        elif len(values):
            take(values)


def give_back(stage: Stage, chunk: Chunk, arrays: Values) -> None:
    """Copies what a stage takes into its buffers, before a chunk goes through it."""
    for array, (buffer, counted_by) in zip(arrays, stage.taken, strict=True):
        rows = chunk.rows(counted_by)
        buffer.array[: rows.stop - rows.start, : buffer.width] = array[rows]
