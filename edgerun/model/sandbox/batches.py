"""Which requests go to the sandbox together: asking it takes longer than most answers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

BATCH_BYTES = 1 << 16  # others wait while a batch is answered


def batches(sizes: Sequence[int], limit: int = BATCH_BYTES) -> Iterator[slice]:
    """Cuts a list into runs of neighbours whose sizes sum to ``limit`` at most.

    What is larger is alone in its run.
    """
    start, total = 0, 0
    for index, size in enumerate(sizes):
        if index > start and total + size > limit:
            yield slice(start, index)
            start, total = index, 0
        total += size
    if start < len(sizes):
        yield slice(start, len(sizes))
