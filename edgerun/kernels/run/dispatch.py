"""A kernel called for parts of a batch, each with weights of its own.

A layer of experts is the same product many times, with other weights and other rows. Which of them
are needed, and for which rows, is known only while the program runs, so an instruction cannot name
their memory. ``dispatch`` stands in for the kernel: it looks up the part that a chunk belongs to,
fills in the addresses of that part's weights and rows, and calls the kernel with them. A chunk
that belongs to no part does nothing.

Weights are found in a table at the time of the call, so that whoever brings them into memory
decides where.
"""

from __future__ import annotations

from edgerun.kernels.jit.declare import function
from edgerun.kernels.lang.intrinsics import call_chunk
from edgerun.kernels.lang.tiles import scratch
from edgerun.kernels.lang.word import set_word, word
from edgerun.kernels.run.parts import (
    ARGUMENTS,
    COUNT,
    FUNCTION,
    HEADER_WORDS,
    MOST_BYTES,
    MOVING,
    PART_WORDS,
    PARTS,
    PIECES,
    ROWS,
    START,
    TABLE,
    UNIT,
    VARYING,
    WORDS,
)


@function("runner-dispatch", returns=False)
def dispatch(block: int, chunk: int) -> None:
    """Calls a kernel for one piece of one part.

    ``PARTS`` is the address of the number of parts and their words, chunk = part * ``PIECES`` +
    piece. ``TABLE`` is int64 ``[units, VARYING]``, addresses. ``ROWS`` is the number of the
    kernel's argument that gets the address of the part's number of rows.
    """
    pieces, parts = word(block, PIECES), word(block, PARTS)
    index = chunk // pieces
    if index < word(parts, 0):
        part = parts + 8 + index * PART_WORDS * 8
        arguments, given = scratch(MOST_BYTES), word(block, ARGUMENTS)
        for place in range(word(block, WORDS)):
            set_word(arguments, place, word(given, place))
        set_word(arguments, word(block, ROWS), part + COUNT * 8)
        varying, pair = word(block, VARYING), block + HEADER_WORDS * 8
        weights = word(block, TABLE) + word(part, UNIT) * varying * 8
        for place in range(varying):
            set_word(arguments, word(pair, 0), word(weights, place))
            pair += 16
        for _moving in range(word(block, MOVING)):
            place, row_bytes = word(pair, 0), word(pair, 1)
            moved = word(given, place) + word(part, START) * row_bytes
            set_word(arguments, place, moved)
            pair += 16
        call_chunk(word(block, FUNCTION), arguments, chunk % pieces)
