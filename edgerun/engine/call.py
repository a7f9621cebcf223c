"""One call of the model: the rows of several sequences as arrays, and what comes of them."""

from __future__ import annotations

from functools import partial
from itertools import compress, pairwise

import numpy as np
from numpy.typing import NDArray

from edgerun.engine.scheduler import Part
from edgerun.errors import BackendError
from edgerun.plan.programs import Programs
from edgerun.state import Adjust, Batch, SequenceStore


def batch_of(parts: list[Part]) -> tuple[Batch, list[int]]:
    """The rows of parts, in order, and where in the logits those of each begin, and the last end.

    All sequences have slots. What was drafted of one follows its ids.
    """
    ids: list[int] = []
    positions: list[int] = []
    slots: list[int] = []
    logit_rows: list[int] = []
    bounds = [0]
    for sequence, rows in parts:
        assert sequence.lease is not None
        drafted = sequence.drafted
        start, stop = sequence.cached, sequence.cached + rows + len(drafted)
        first = max(start, sequence.logits_from)
        logit_rows += range(len(ids) + first - start, len(ids) + stop - start)
        bounds.append(len(logit_rows))
        ids += sequence.ids[start : start + rows]
        ids += drafted
        positions += range(start, stop)
        slots += [sequence.lease.slot] * (stop - start)
    table = np.array((ids, positions, slots), np.int32)  # one array takes less time than three
    # What is done to logits behind a drafted id is not known before it was chosen.
    largest_only = all(each.takes_largest and not each.drafted for each, _ in parts)
    adjustments: tuple[Adjust | None, ...] = ()
    if largest_only:
        has_row = (end > begin for begin, end in pairwise(bounds))  # of a sequence, one row or none
        adjustments = tuple(sequence.adjust for sequence, _ in compress(parts, has_row))
        adjustments = adjustments if any(adjustments) else ()
    rows_ = np.array(logit_rows, np.int32)
    cancelled = partial(are_cancelled, parts)
    take = parts[0][0].take_logits if len(parts) == 1 else None
    batch = Batch(table[0], table[1], table[2], rows_, largest_only, adjustments, cancelled, take)
    return batch, bounds


def are_cancelled(parts: list[Part]) -> bool:
    """Whether nobody waits for any of the sequences any more."""
    return all(sequence.cancelled for sequence, _ in parts)


def logits_of(
    programs: Programs, batch: Batch, store: SequenceStore, vocab_size: int
) -> NDArray[np.float32]:
    """Logits of the rows that a batch wants, float32 ``[n, vocab_size]``, until the next call.

    Those that were handed over are not among them.

    Raises:
        BackendError: the model failed, or returned logits of another shape.
        Cancelled: nobody wants them any more.
    """
    logits: NDArray[np.float32] = programs.run(batch, store)["logits"]
    is_handed = batch.take_logits is not None and batch.rows > programs.max_rows
    rows = 0 if is_handed else len(batch.logit_rows)
    if logits.shape != (rows, vocab_size):
        raise BackendError(
            f"the model returned logits of shape {logits.shape}; expected ({rows}, {vocab_size})"
        )
    return logits
