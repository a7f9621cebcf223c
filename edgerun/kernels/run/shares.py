"""How the panels of a matrix are divided among threads: long runs first, short ones at the end.

Memory is read fastest in long runs: wherever one begins it idles until the processor has seen what
is read next. So every thread first takes most of its share as one chunk, then most of its share of
what is left, and so on (factoring, Hummel, Schonberg and Flynn 1992), which lets all end together
also where some are slower than others.

What lays programs out and native code both call this, the latter by ``linear/turns.py``.
"""

from __future__ import annotations

TAKEN, OF = 3, 4  # of a thread's share of what is left: what it takes as one chunk


def chunk_panels(chunk: int, panels: int, step: int, threads: int) -> tuple[int, int]:
    """The first panel of a chunk, and the end of its panels.

    Chunks are multiples of ``step`` panels, but for the last one. With 0 ``threads`` all are of
    that size.
    """
    begin, size = 0, step
    while threads > 0:
        size = max(step, (panels - begin) * TAKEN // (OF * threads) // step * step)
        if chunk < threads or size == step:
            break
        begin += threads * size
        chunk -= threads
    begin += chunk * size
    return begin, min(panels, begin + size)


def count_chunks(panels: int, step: int, threads: int) -> int:
    """How many chunks there are."""
    chunks, end = 0, 0
    while end < panels:
        _, end = chunk_panels(chunks, panels, step, threads)
        chunks += 1
    return chunks
