"""A kernel called for parts of a batch, each with weights of its own.

A layer of experts is the same product many times, with other weights and other rows. Which of them
are needed, and for which rows, is known only while the program runs, so an instruction cannot name
their memory. ``dispatch`` stands in for the kernel: it looks up the part that a chunk belongs to,
fills in the addresses of that part's weights and rows, and calls the kernel with them. A chunk
that belongs to no part does nothing.

All that belongs to one unit of weights lies in a slot, at offsets that are the same for all. A
table says where the slots are. Weights that are not in memory are waited for: whoever brings them
there sets their word (``residency.py``).
"""

from __future__ import annotations

from numba import njit

from edgerun.kernels.jit.declare import function
from edgerun.kernels.lang.intrinsics import (
    atomic_add,
    atomic_load,
    call_chunk,
    compare_exchange,
    doze,
    nanoseconds,
    pause,
)
from edgerun.kernels.lang.tiles import scratch
from edgerun.kernels.lang.word import set_word, word
from edgerun.kernels.run.parts import (
    ARGUMENTS,
    CONTROL,
    COUNT,
    FIRST,
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
    TILED,
    TOKENS,
    UNIT,
    VARYING,
    WORDS,
)
from edgerun.kernels.run.residency import ABORT, COVERED, LATE, PATIENCE, WAITED

SPINS_BEFORE_DOZING = 2_000


@function("runner-dispatch", returns=False)
def dispatch(block: int, chunk: int) -> None:
    """Calls a kernel for one piece of one part.

    ``PARTS`` is the address of the number of parts and their words, chunk = (part - ``FIRST``) *
    ``PIECES`` + piece. ``TABLE`` is int64 ``[units]``, addresses of slots; ``CONTROL`` the address
    of a pool's control block, which is not looked at while all slots are there. ``ROWS`` is the
    number of the kernel's argument that gets the address of the part's number of rows.
    """
    pieces, parts = word(block, PIECES), word(block, PARTS)
    index = word(block, FIRST) + chunk // pieces
    if index < word(parts, 0):
        part = parts + 8 + index * PART_WORDS * 8
        entry = word(block, TABLE) + word(part, UNIT) * 8
        slot = atomic_load(entry)
        if slot == 0:
            slot = _arrival(entry, word(block, CONTROL))
        if slot != 0:
            _call(block, part, slot, chunk % pieces)


@njit
def _call(block, part, slot, piece):  # type: ignore[no-untyped-def]
    """Calls the kernel with the weights in a slot and the rows of a part."""
    arguments, given = scratch(MOST_BYTES), word(block, ARGUMENTS)
    for place in range(word(block, WORDS)):
        set_word(arguments, place, word(given, place))
    set_word(arguments, word(block, ROWS), part + COUNT * 8)
    pair = block + HEADER_WORDS * 8
    for _varying in range(word(block, VARYING)):
        set_word(arguments, word(pair, 0), slot + word(pair, 1))
        pair += 16
    for _moving in range(word(block, MOVING)):
        place, row_bytes = word(pair, 0), word(pair, 1)
        set_word(arguments, place, word(given, place) + word(part, START) * row_bytes)
        pair += 16
    first = first_of_tiles(word(part, START), word(part, UNIT), word(block, TOKENS))
    for _tiled in range(word(block, TILED)):
        place, row_bytes = word(pair, 0), word(pair, 1)
        set_word(arguments, place, word(given, place) + first * row_bytes)
        pair += 16
    call_chunk(word(block, FUNCTION), arguments, piece)


@njit
def first_of_tiles(start, unit, tokens):  # type: ignore[no-untyped-def]
    """First row of a part among rows of which those of each part begin at a whole tile.

    Parts are in the order of their units by their rows, however they come in turn. One that begins
    ``n`` rows behind another then begins at least ``n // tokens + 1`` tiles behind it, and all end
    within ``units`` tiles more than there are rows.
    """
    return (start // tokens + unit) * tokens


@njit
def _arrival(entry, control):  # type: ignore[no-untyped-def]
    """Waits until weights are in memory; returns their slot, or 0 if they will not come."""
    started = nanoseconds()
    slot, spins = atomic_load(entry), 0
    while slot == 0 and atomic_load(control + ABORT * 8) == 0:
        spins += 1
        if spins < SPINS_BEFORE_DOZING:
            pause()
        else:
            doze()
            if nanoseconds() - started > word(control, PATIENCE):
                compare_exchange(control + ABORT * 8, 0, LATE)
        slot = atomic_load(entry)
    _count_wait(control, started, nanoseconds())
    return slot


@njit
def _count_wait(control, started, ended):  # type: ignore[no-untyped-def]
    """Adds to the time in which anybody waited, but not what another's wait has covered."""
    covered = atomic_load(control + COVERED * 8)
    while covered < ended:
        if compare_exchange(control + COVERED * 8, covered, ended):
            atomic_add(control + WAITED * 8, ended - max(started, covered))
            return
        covered = atomic_load(control + COVERED * 8)
