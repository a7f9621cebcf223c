"""One call of the model: the rows of several sequences as arrays, and their logits back."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from edgerun.engine.scheduler import Part
from edgerun.state import Batch


def batch_of(parts: list[Part]) -> Batch:
    """The rows of parts, in order, whose sequences have slots."""
    ids: list[int] = []
    positions: list[int] = []
    slots: list[int] = []
    logit_rows: list[int] = []
    for sequence, rows in parts:
        assert sequence.lease is not None
        start, stop = sequence.cached, sequence.cached + rows
        first = max(start, sequence.logits_from)
        logit_rows += range(len(ids) + first - start, len(ids) + rows)
        ids += sequence.ids[start:stop]
        positions += range(start, stop)
        slots += [sequence.lease.slot] * rows
    int32 = np.int32
    return Batch(
        np.array(ids, int32),
        np.array(positions, int32),
        np.array(slots, int32),
        np.array(logit_rows, int32),
    )


def logits_by_part(
    parts: list[Part], logits: NDArray[np.float32]
) -> Iterator[tuple[Part, NDArray[np.float32]]]:
    """Each part with its rows, which may be none, of the logits ``[n, vocab]`` of their batch."""
    row = 0
    for part in parts:
        sequence, rows = part
        begin = row
        row += max(0, rows - max(0, sequence.logits_from - sequence.cached))  # before it goes on
        yield part, logits[begin:row]
