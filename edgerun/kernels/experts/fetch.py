"""What a layer of experts tells whoever brings weights into memory, and two calls for them.

The layer posts the experts that it needs and goes on: those whose weights are in memory come
first, and products wait for the others (``run/dispatch.py``). Posting and evicting exclude one
another, so that an expert that was in memory when it was posted stays there until the layer is
done with it.
"""

from __future__ import annotations

from numba import float32, int64, njit

from edgerun.kernels.experts.rows import part_at, places_end, swap_parts
from edgerun.kernels.jit.declare import Arguments, Body, function, kernel
from edgerun.kernels.lang.intrinsics import (
    atomic_load,
    atomic_store,
    compare_exchange,
    nanoseconds,
    rest,
    write_byte,
)
from edgerun.kernels.lang.word import float_at, set_float, set_word, word
from edgerun.kernels.run.parts import PART_WORDS, START, UNIT
from edgerun.kernels.run.residency import (
    ABORT,
    BELL,
    CONTROL_WORDS,
    COUNT,
    DONE,
    EXPERTS,
    FORESEES,
    HAS_INPUT,
    HITS,
    LOCK,
    LOG,
    LOG_ENTRIES,
    MISSES,
    POSTED,
    SEQUENCE,
    TIME,
)


@kernel(
    "expert_fetch",
    f"parts:i64[1 + experts * {PART_WORDS}] table:i64[experts] weights:f32[places] places"
    f" control:i64[{CONTROL_WORDS}] post:i64[{EXPERTS} + experts] scores:f32[experts]"
    " layer first experts rows:i64[1] x:f32[rows, width; x_stride] x_stride width input:f32[width]",
)
def expert_fetch() -> Body:
    """Asks for the experts of a wave, which begins with part ``first``; one chunk.

    The first wave posts all parts, in the order that they get here: those in memory first, else by
    expert. ``scores`` gets the sum of the weights of each, in that order, and ``input`` the row
    of a batch of one, where somebody wants to foresee what later layers need. Later waves say that
    the parts before them are done with. Nothing is posted in a run that was given up.
    """

    def body(a: Arguments, chunk: int) -> None:
        active = word(a.parts, 0)
        if a.first < active and atomic_load(a.control + ABORT * 8) == 0:
            _lock(a.control)
            if a.first == 0:
                _post(a, active, _move_missing_back(a, active))
            else:
                atomic_store(a.post + DONE * 8, a.first)
            missing = _missing(a, a.first, active)
            has_input = a.first == 0 and word(a.post, HAS_INPUT) != 0
            atomic_store(a.control + LOCK * 8, 0)
            if missing > 0 or has_input:
                write_byte(word(a.control, BELL))

    return body


@njit
def _lock(control):  # type: ignore[no-untyped-def]
    """Waits for the lock of a pool, which nobody holds for long."""
    spins = 0
    while not compare_exchange(control + LOCK * 8, 0, 1):
        spins += 1
        rest(spins)


@njit
def _slot(a, index):  # type: ignore[no-untyped-def]
    """Where the weights of a part are, 0 if they are not in memory."""
    return atomic_load(a.table + word(part_at(a.parts, index), UNIT) * 8)


@njit
def _move_missing_back(a, active):  # type: ignore[no-untyped-def]
    """Puts parts whose weights are missing behind the others, in their order; how many they are."""
    behind = active
    for index in range(active - 1, -1, -1):
        if _slot(a, index) == 0:
            behind -= 1
            swap_parts(part_at(a.parts, index), part_at(a.parts, behind))
    return active - behind


@njit
def _missing(a, first, last):  # type: ignore[no-untyped-def]
    """How many of some parts have weights that are not in memory."""
    missing = 0
    for index in range(first, last):
        missing += _slot(a, index) == 0
    return missing


@njit
def _post(a, active, missing):  # type: ignore[no-untyped-def]
    """Writes a post; its number is 0 meanwhile, for whoever reads without the lock.

    Nothing of it is done with before anybody learns of it, or what it needs might be evicted.
    """
    atomic_store(a.post + SEQUENCE * 8, 0)
    atomic_store(a.post + DONE * 8, 0)
    for index in range(active):
        part, score = part_at(a.parts, index), float32(0)
        for place in range(word(part, START), places_end(part)):
            score += float_at(a.weights, place)
        set_word(a.post, EXPERTS + index, word(part, UNIT))
        set_float(a.scores, index, score)
    set_word(a.post, COUNT, active)
    set_word(a.post, TIME, nanoseconds())
    _post_input(a)
    set_word(a.post, HITS, word(a.post, HITS) + active - missing)
    set_word(a.post, MISSES, word(a.post, MISSES) + missing)
    sequence = int64(word(a.control, POSTED) + 1)
    set_word(a.control, LOG + sequence % LOG_ENTRIES, a.layer)
    atomic_store(a.post + SEQUENCE * 8, sequence)
    atomic_store(a.control + POSTED * 8, sequence)


@njit
def _post_input(a):  # type: ignore[no-untyped-def]
    """Copies the row of a batch of one, if somebody looks at it."""
    has_input = int64(word(a.control, FORESEES) != 0 and word(a.rows, 0) == 1)
    set_word(a.post, HAS_INPUT, has_input)
    if has_input != 0:
        for column in range(a.width):
            set_float(a.input, column, float_at(a.x, column))


@function("pool-posted", returns=True)
def posted(control: int) -> int:
    """The number of the last post."""
    return int64(atomic_load(control + POSTED * 8))  # type: ignore[no-any-return]


@function("pool-evict", returns=True)
def evict(control: int, entry: int, sequence: int) -> int:
    """Takes weights out of the table, unless something was posted after ``sequence``; whether."""
    _lock(control)
    is_last = int64(word(control, POSTED) == sequence)
    if is_last != 0:
        atomic_store(entry, 0)
    atomic_store(control + LOCK * 8, 0)
    return is_last  # type: ignore[no-any-return]


@function("pool-publish", returns=False)
def publish(entry: int, slot: int) -> None:
    """Puts weights into the table, behind all that was written before."""
    atomic_store(entry, slot)
