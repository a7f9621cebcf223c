"""A ragged batch: token rows of any number of sequences, one after the other."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


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
            several: the others may be anything below it.
    """

    ids: NDArray[np.int32]
    positions: NDArray[np.int32]
    sequences: NDArray[np.int32]
    logit_rows: NDArray[np.int32]
    largest_only: bool = False

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
        )

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
        )
