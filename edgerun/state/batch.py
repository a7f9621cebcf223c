"""A ragged batch: token rows of any number of sequences, one after the other."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import chain, compress
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from edgerun.errors import Cancelled


@dataclass(frozen=True, slots=True)
class Adjustment:
    """What is done to some logits of a row before the largest is taken.

    A positive logit is divided by its divisor and another one multiplied by it, then its amount is
    subtracted, each in float32. As divisors are positive, no step changes the order of two logits
    of the same id: what bounds a logit bounds it adjusted as well.

    Attributes:
        ids: int64 ``[n]``, each once.
        divisors: float32 ``[n]``, above 0.
        amounts: float32 ``[n]``.
    """

    ids: NDArray[np.int64]
    divisors: NDArray[np.float32]
    amounts: NDArray[np.float32]


# Makes one, as long as no other id was chosen.
Adjust: TypeAlias = Callable[[], Adjustment | None]
# Gets logits of some rows, float32 ``[rows, vocab]``, which change when it returns.
TakeLogits: TypeAlias = Callable[[NDArray[np.float32]], None]


@dataclass(frozen=True, slots=True)
class Batch:
    """Token rows for one call of an executable.

    Prefill chunks, single-token decode, several sequences at once and draft verification are
    the same call with other row descriptors; only attention looks across rows.

    Attributes:
        ids: token ids, int32 ``[rows]``.
        positions: position of each token in its sequence, int32 ``[rows]``. The rows of one
            sequence are consecutive in the batch and in position.
        sequences: the cache sequence each row belongs to, int32 ``[rows]``.
        logit_rows: indices of the rows whose logits are wanted, int32 ``[n]``, increasing.
        largest_only: of each row's logits nothing but the largest is looked at, the first of
            several, once those that ``adjustments`` names are adjusted: the others may be anything
            that stays below it.
        adjustments: for each of ``logit_rows`` a function that makes one, None for rows without;
            empty if none has one. Making one takes time, and most devices never ask.
        is_cancelled: whether nobody waits for the batch any more, asked now and then where it is
            long; None where somebody always does.
        take_logits: gets logits block by block, in order, where the batch goes layer by layer, so
            that they need no room and none are returned; None if they are to be returned.
    """

    ids: NDArray[np.int32]
    positions: NDArray[np.int32]
    sequences: NDArray[np.int32]
    logit_rows: NDArray[np.int32]
    largest_only: bool = False
    adjustments: tuple[Adjust | None, ...] = ()
    is_cancelled: Callable[[], bool] | None = None
    take_logits: TakeLogits | None = None

    @property
    def rows(self) -> int:
        """Number of token rows."""
        return len(self.ids)

    def runs(self) -> Iterator[tuple[int, int]]:
        """Start and stop of every run of rows of one sequence."""
        edges = np.flatnonzero(np.diff(self.sequences)) + 1
        bounds = [0, *edges.tolist(), self.rows]
        yield from zip(bounds[:-1], bounds[1:], strict=True)

    def part(self, start: int, stop: int) -> Batch:
        """The rows from ``start`` to ``stop - 1``, and those of their logits that are wanted."""
        inside = (self.logit_rows >= start) & (self.logit_rows < stop)
        return Batch(
            self.ids[start:stop],
            self.positions[start:stop],
            self.sequences[start:stop],
            self.logit_rows[inside] - np.int32(start),
            self.largest_only,
            tuple(compress(self.adjustments, inside)),
            self.is_cancelled,
        )

    def check_cancelled(self) -> None:
        """Makes sure that somebody waits for it.

        Raises:
            Cancelled: nobody does any more.
        """
        if self.is_cancelled is not None and self.is_cancelled():
            raise Cancelled("nobody waits for this batch any more")

    @classmethod
    def of(
        cls,
        ids: NDArray[np.int32] | list[int],
        start: int,
        sequence: int,
        *,
        logits: str = "last",
    ) -> Batch:
        """Rows of one sequence that continue it at position ``start``.

        Args:
            ids: the tokens to append, at least one.
            start: position of the first of them.
            sequence: sequence number as returned by ``SequenceStore.open``.
            logits: ``"last"`` for the last row's logits, ``"all"`` for every row's, ``"none"``.
        """
        tokens = np.asarray(ids, dtype=np.int32)
        rows = len(tokens)
        first = {"last": rows - 1, "all": 0, "none": rows}[logits]
        return cls(
            ids=tokens,
            positions=np.arange(start, start + rows, dtype=np.int32),
            sequences=np.full(rows, sequence, dtype=np.int32),
            logit_rows=np.arange(first, rows, dtype=np.int32),
        )

    @classmethod
    def join(cls, parts: list[Batch]) -> Batch:
        """Concatenates the rows of several batches, in order."""
        offsets = np.cumsum([0] + [part.rows for part in parts[:-1]])
        return cls(
            ids=np.concatenate([part.ids for part in parts]),
            positions=np.concatenate([part.positions for part in parts]),
            sequences=np.concatenate([part.sequences for part in parts]),
            logit_rows=np.concatenate(
                [part.logit_rows + offset for part, offset in zip(parts, offsets, strict=True)]
            ).astype(np.int32),
            largest_only=all(part.largest_only for part in parts),
            adjustments=_joined(parts),
        )


def _joined(parts: list[Batch]) -> tuple[Adjust | None, ...]:
    if not any(part.adjustments for part in parts):
        return ()
    by_part = [part.adjustments or (None,) * len(part.logit_rows) for part in parts]
    return tuple(chain.from_iterable(by_part))
