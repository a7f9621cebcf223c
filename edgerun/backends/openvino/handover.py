"""Pieces of one sequence, one after the other, and their keys and values on their way.

The past goes from the pages into the mirror before the first piece. The keys and values of a piece
go into the mirror, so that the next piece can start at once, and from there into the pages while
it is computed; those of the last piece go into the pages directly.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence

from edgerun.backends.openvino.mirror import Mirror
from edgerun.backends.openvino.network import Network, Results
from edgerun.backends.openvino.translation import Piece
from edgerun.state import AttentionState, SequenceStore
from edgerun.state.store import Block


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
