"""Batches as pieces of one sequence each, which fit the static shapes of networks, and their run.

The past goes from the pages into the mirror before the first piece. The keys and values of a piece
go into the mirror, so that the next piece can start at once, and from there into the pages while
it is computed; those of the last piece go into the pages directly.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from edgerun.backends.base import Phase, Shape, Values
from edgerun.backends.openvino.mirror import Mirror
from edgerun.backends.openvino.network import Network, Results
from edgerun.backends.openvino.translation import Extent, Piece
from edgerun.graph.ir import Graph
from edgerun.graph.shapes import input_shapes, value_shapes
from edgerun.machine.devices import cut, worthwhile
from edgerun.ops.registry import OPS
from edgerun.state import AttentionState, Batch, SequenceStore
from edgerun.state.store import Block

Number = TypeVar("Number", bound=np.generic)
# Few, since every network holds the weights once more.
ROWS = {Phase.DECODE: (1,), Phase.FEW: (16,), Phase.PREFILL: (64, 256, 1024)}
PAST, PAST_STEP = 256, 4


@dataclass(frozen=True, slots=True)
class Cut:
    """What one call of a network takes of a batch.

    Attributes:
        extent: of the network.
        rows: of the batch.
        logit_rows: of the rows of logits.
    """

    extent: Extent
    rows: slice
    logit_rows: slice


class Pieces:
    """Cuts batches for one segment."""

    def __init__(self, segment: Graph, shape: Shape) -> None:
        """Takes the segment, and the shape of its batches."""
        self._rows = worthwhile(ROWS[shape.phase], shape.rows)
        self._has_cache = any(
            OPS[node.op].state is not None or OPS[node.op].reads is not None
            for node in segment.nodes
        )
        self._inputs = input_shapes(segment)
        shapes = value_shapes(segment)  # which may be those of the graph it was cut from
        produced = (name for node in segment.nodes for name in node.outputs)
        self._selects = any(shapes[name].selected for name in (*produced, *segment.inputs))

    def first(self) -> Extent:
        """The network that the beginning of a prompt needs, or a reply."""
        return Extent(self._rows[0], PAST if self._has_cache else 0, int(self._selects))

    def cut(self, batch: Batch, context: int) -> Iterator[list[Cut]]:
        """The pieces of each sequence in order."""
        for start, stop in batch.runs():
            sizes = [*cut(stop - start, self._rows)]
            begins = accumulate(sizes, initial=start)
            yield [
                self._cut(batch, slice(begin, min(stop, begin + size)), size, context)
                for begin, size in zip(begins, sizes, strict=False)  # one more begins: the end
            ]

    def _cut(self, batch: Batch, taken: slice, rows: int, context: int) -> Cut:
        first, last = np.searchsorted(batch.logit_rows, (taken.start, taken.stop)).tolist()
        logit_rows = (0, 1, rows)[min(last - first, 2)] if self._selects else 0
        past = self._past(int(batch.positions[taken.start]), context)
        return Cut(Extent(rows, past, logit_rows), taken, slice(first, last))

    def piece(self, batch: Batch, values: Values, cut: Cut) -> Piece:
        """The arrays of a piece, padded."""
        rows, extent = cut.rows, cut.extent
        return Piece(
            ids=_padded(batch.ids[rows], extent.rows),
            slot=int(batch.sequences[rows.start]),
            start=int(batch.positions[rows.start]),
            length=rows.stop - rows.start,
            logit_rows=_padded(
                batch.logit_rows[cut.logit_rows] - np.int32(rows.start), extent.logit_rows
            ),
            inputs={
                name: _padded(values[name][cut.logit_rows], extent.logit_rows)
                if shape.selected
                else _padded(values[name][rows], extent.rows)
                for name, shape in self._inputs.items()
            },
        )

    def _past(self, start: int, context: int) -> int:
        """Room for the past: none where nothing is kept, and not much more than there can be."""
        if not self._has_cache:
            return 0
        room = PAST
        while room < start:
            room *= PAST_STEP
        return room if room == PAST else min(room, context)


def run_pieces(
    pieces: Sequence[tuple[Network, Piece]], store: SequenceStore, mirror: Mirror
) -> Iterator[Results]:
    """Computes consecutive pieces of one sequence, each by its network.

    Yields:
        what each computed, valid until the next is asked for. Once a piece has begun, the keys and
        values of those before it are in the pages; with the last piece, its own are, too.

    Raises:
        RuntimeError: the device failed.
        TimeoutError: it does not answer.
        BackendError: it computed what is no number.
    """
    mirror.turn_to(store, pieces[0][1].slot)
    before: Mapping[AttentionState, Block] = {}
    start = 0
    for index, (network, piece) in enumerate(pieces):
        tally = network.tally
        with network.start(piece, mirror) as running:
            if before:
                seconds = _write(store, piece.slot, start, before)
                tally.moving_s += seconds
                tally.overlapped_s += 0.0 if running.has_ended() else seconds
            results = running.wait()
        began, start, before = time.perf_counter(), piece.start, results.blocks
        if index + 1 < len(pieces):
            before = {state: mirror.add(state, start, rows) for state, rows in before.items()}
        else:
            _write(store, piece.slot, start, before)
        seconds = time.perf_counter() - began
        tally.seconds += seconds
        tally.moving_s += seconds
        yield results


def _write(
    store: SequenceStore, slot: int, start: int, blocks: Mapping[AttentionState, Block]
) -> float:
    """Writes rows into the pages; returns the seconds that it took."""
    began = time.perf_counter()
    for state, block in blocks.items():
        store.write_block(state.name, slot, start, block)
    return time.perf_counter() - began


def _padded(array: NDArray[Number], rows: int) -> NDArray[Number]:
    """An array of so many rows, zeros behind its own; none if none are asked for."""
    out = np.zeros((rows, *array.shape[1:]), array.dtype)
    out[: len(array)] = array[:rows]
    return out
