"""An instruction of a native program that attends on the overlay.

It rounds queries, queues a layer's commands, waits and looks at the results: what
``backend/attention.py`` does in NumPy, with the same bits. Results are ``overlay.attention.attend``
of the cache's int8 codes.
"""

from __future__ import annotations

from math import frexp, ldexp
from typing import Any

import numpy as np
from numba import carray, cfunc, njit

from edgerun_hw.backend.attention import CHECK_EVERY
from edgerun_hw.backend.native.attention_words import (
    ARGUMENT_WORDS,
    BOUNDS,
    CHECK_WORDS,
    CHECKS,
    COPIES,
    DEPTH,
    EXPECTED,
    GROUP,
    HEAD_DIM,
    K_RESULTS,
    K_RUNS,
    KV_HEADS,
    MOST_QUERIES,
    OUT,
    OUT_STRIDE,
    Q_STRIDE,
    QUERY_POSITIONS,
    QUERY_ROWS,
    QUERY_SEQUENCES,
    RESULTS,
    SCALE,
    WINDOW,
    X_ADDRESS,
    X_BYTES,
    X_FIRST,
    X_MEMORY,
    Q,
)
from edgerun_hw.backend.native.recompute import recompute
from edgerun_hw.backend.native.request import (
    FINE,
    OUTSIDE_FORMAT,
    PORTS,
    R_ADDRESS,
    R_FIRST,
    R_MEMORY,
    RESULT_WORDS,
    S_ATTENDED,
    S_STATUS,
    S_SUBMITTED,
    STATE,
    STATE_WORDS,
    WORD,
    WRONG_ATTENTION,
    ask,
    floats,
    pointer,
    push,
    synchronise,
    wait_for,
    words,
    write_address,
)
from edgerun_hw.backend.native.sequence_copy import (
    C_ADDRESS,
    C_LARGEST,
    C_SCALES,
    C_SEQUENCE,
    COPY_WORDS,
)
from edgerun_hw.backend.native.write_rows import pair_bytes
from edgerun_hw.devices.native.exchange import FLUSH, INVALIDATE, WRITE
from edgerun_hw.overlay import register_map as regs
from edgerun_hw.overlay.attention import (
    BLOCK_TOKENS,
    LARGEST_QUERY,
    LOG2_E,
    MANTISSA_BITS,
    MAX_SHIFT,
    QUERY_BITS,
    SCALE_BIAS,
    SCORE_BIAS,
)
from edgerun_hw.overlay.attention_layout import UNIT
from edgerun_hw.overlay.command import MAX_FILL_CYCLES, MAX_START_CYCLES

BEAT, ATTENTION = regs.BEAT_BYTES, regs.CMD_MODE_ATTENTION.mask
HIDDEN = 1 << (MANTISSA_BITS - 1)
LARGEST_CODE = (1 << (QUERY_BITS - 1)) - 1
# What an element may be: 127 scales, and weights add up to one but for roundings.
MARGIN = 127 * 1.01


@njit
def _seen(args: Any, row: int) -> Any:
    """The first token that a row sees, and the one behind the last."""
    limit = np.int64(carray(pointer(args[QUERY_POSITIONS]), row + 1, np.int32)[row]) + 1
    return max(limit - args[WINDOW], 0) if args[WINDOW] else 0, limit


@njit
def _largest(args: Any, copy: Any, head: int, first: int, limit: int) -> Any:
    """The largest scale of a head's values among some tokens, encoded."""
    heads, largest, token = args[KV_HEADS], 0, first
    scales = carray(pointer(copy[C_SCALES]), limit * heads, np.uint16)
    blocks = carray(pointer(copy[C_LARGEST]), limit // BLOCK_TOKENS * heads, np.uint16)
    while token < limit:
        if token % BLOCK_TOKENS == 0 and token + BLOCK_TOKENS <= limit:
            largest = max(largest, blocks[token // BLOCK_TOKENS * heads + head])
            token += BLOCK_TOKENS
        else:
            largest = max(largest, scales[token * heads + head])
            token += 1
    return largest


@njit
def _round_query(query: Any, scale: Any, header: Any, codes: Any) -> Any:
    """Rounds a query as ``quantise_queries`` does; whether the format holds it."""
    factor = np.float32(scale) * LOG2_E
    largest = np.float32(0)
    for element in query:
        magnitude = abs(element * factor)
        if not magnitude < LARGEST_QUERY:
            return False
        largest = max(largest, magnitude)
    power = 0
    if largest > 0:
        power = min(QUERY_BITS - 1 - frexp(np.float64(largest))[1], 2 * MAX_SHIFT - SCORE_BIAS)
    header[0] = power + SCORE_BIAS
    factor_of_two = ldexp(1.0, power)
    for place in range(len(query)):
        code = np.rint(np.float64(query[place] * factor) * factor_of_two)
        codes[place] = np.int16(min(max(code, -LARGEST_CODE), LARGEST_CODE))
    return True


@njit
def _pack(args: Any, copy: Any, flat: int, count: int, slot: int) -> Any:
    """Packs queries and what each may give at most; whether the format holds them."""
    dim, heads, group = args[HEAD_DIM], args[KV_HEADS], args[GROUP]
    nbytes = BEAT + 2 * dim
    bounds = floats(args[BOUNDS], slot * args[MOST_QUERIES] * heads, count * heads)
    scale, begin = floats(args[SCALE], 0, 1)[0], _block(args, flat, count) * BLOCK_TOKENS
    at = args[X_MEMORY] + slot * args[X_BYTES]
    for head in range(heads):
        for number in range(count):
            row, member = (flat + number) // group, (flat + number) % group
            first, limit = _seen(args, row)
            header = carray(pointer(at), BEAT, np.uint8)
            codes = carray(pointer(at + BEAT), dim, np.int16)
            at += nbytes
            place = row * args[Q_STRIDE] + (head * group + member) * dim
            header[:] = 0
            if not _round_query(floats(args[Q], place, dim), scale, header, codes):
                return False
            largest = _largest(args, copy, head, first, limit)
            exponent, mantissa = largest >> (MANTISSA_BITS - 1), largest & (HIDDEN - 1) | HIDDEN
            header[1] = exponent
            for byte in range(4):
                header[4 + byte] = (first - begin) >> (8 * byte) & 0xFF
                header[8 + byte] = (limit - begin) >> (8 * byte) & 0xFF
            power = ldexp(1.0, exponent - SCALE_BIAS - MANTISSA_BITS + 1)
            bounds[head * count + number] = MARGIN * mantissa * power if exponent else 0.0
    return True


@njit
def _block(args: Any, flat: int, count: int) -> Any:
    """The first block that some queries see; they are in the order of their positions."""
    return _seen(args, flat // args[GROUP])[0] // BLOCK_TOKENS


@njit
def _pairs(args: Any, flat: int, count: int) -> Any:
    """Pairs of blocks that a command reads."""
    limit = _seen(args, (flat + count - 1) // args[GROUP])[1]
    blocks = -(-limit // BLOCK_TOKENS) - _block(args, flat, count)
    return blocks * args[KV_HEADS] + regs.KV_LEAD


@njit
def _submit(args: Any, state: Any, copy: Any, flat: int, count: int, slot: int) -> None:
    """Flushes the queries of a command and queues it."""
    x, heads = slot * args[X_BYTES], args[KV_HEADS]
    ask(args, state, FLUSH, args[X_FIRST] + x, args[X_BYTES])
    mode = ATTENTION | heads << regs.CMD_MODE_KV_HEADS.lsb
    mode |= args[HEAD_DIM] // UNIT << regs.CMD_MODE_HEAD_UNITS.lsb
    ask(args, state, WRITE, regs.CMD_MODE, mode)
    ask(args, state, WRITE, regs.CMD_ROW_BEATS, pair_bytes(args) // BEAT)
    ask(args, state, WRITE, regs.CMD_TILES, _pairs(args, flat, count))
    ask(args, state, WRITE, regs.CMD_COLUMNS, count)
    ask(args, state, WRITE, regs.CMD_TAG, state[S_SUBMITTED] & WORD)
    write_address(args, state, regs.CMD_X, args[X_ADDRESS] + x)
    results = words(args[RESULTS] + slot * RESULT_WORDS * 8, RESULT_WORDS)
    write_address(args, state, regs.CMD_Y, results[R_ADDRESS])
    offset = _block(args, flat, count) * heads * pair_bytes(args)
    for port in range(args[PORTS]):
        write_address(args, state, regs.CMD_W[0] + 8 * port, copy[C_ADDRESS + port] + offset)
    push(args, state)


@njit
def _check(args: Any, state: Any, copy: Any, flat: int, count: int, slot: int) -> Any:
    """Computes one head of one query of every ``CHECK_EVERY``-th command of a run again.

    From run to run commands, heads and queries take turns.

    Returns:
        which of the command's results it is; -1 for none.
    """
    checks, number = words(args[CHECKS], CHECK_WORDS), state[S_ATTENDED]
    state[S_ATTENDED] += 1
    turn = number + checks[K_RUNS]
    if turn % CHECK_EVERY:
        return -1
    dim, heads = args[HEAD_DIM], args[KV_HEADS]
    place = turn // CHECK_EVERY % (heads * count)
    at = args[X_MEMORY] + slot * args[X_BYTES] + place * (BEAT + 2 * dim)
    header = carray(pointer(at), BEAT, np.uint8)
    codes = carray(pointer(at + BEAT), dim, np.int16)
    first, limit = _seen(args, (flat + place % count) // args[GROUP])
    expected = floats(args[EXPECTED], slot * dim, dim)
    recompute(args, copy, place // count, codes, header, first, limit, expected)
    checks[K_RESULTS] += 1
    return place


@njit
def _is_right(args: Any, memory: int, place: int, slot: int) -> Any:
    """Whether a result is the one that was computed again."""
    dim = args[HEAD_DIM]
    results, expected = floats(memory, place * dim, dim), floats(args[EXPECTED], slot * dim, dim)
    return (results == expected).all()


@njit
def _take(
    args: Any, state: Any, flat: int, count: int, number: int, slot: int, checked: int
) -> None:
    """Waits for a command and takes its results.

    None may exceed the largest value, and the one that was computed again must be the same.
    """
    dim, heads, group = args[HEAD_DIM], args[KV_HEADS], args[GROUP]
    drain = count * heads * dim // 4
    cycles = _pairs(args, flat, count) * max(pair_bytes(args) // BEAT, MAX_FILL_CYCLES)
    if not wait_for(args, state, number, cycles + drain + MAX_START_CYCLES):
        return
    buffer = words(args[RESULTS] + slot * RESULT_WORDS * 8, RESULT_WORDS)
    memory, nbytes = buffer[R_MEMORY], 4 * count * heads * dim
    if synchronise(args, state, INVALIDATE, buffer[R_FIRST], nbytes) < 0:
        return
    bounds = floats(args[BOUNDS], slot * args[MOST_QUERIES] * heads, count * heads)
    for head in range(heads):
        for query in range(count):
            results = floats(memory, (head * count + query) * dim, dim)
            row, member = (flat + query) // group, (flat + query) % group
            place = row * args[OUT_STRIDE] + (head * group + member) * dim
            out, bound = floats(args[OUT], place, dim), bounds[head * count + query]
            for d in range(dim):
                if not abs(results[d]) <= bound:
                    state[S_STATUS] = WRONG_ATTENTION
                out[d] = results[d]
    if checked >= 0 and not _is_right(args, memory, checked, slot):
        state[S_STATUS] = WRONG_ATTENTION


@njit
def _count(args: Any, sequences: Any, flat: int, total: int) -> Any:
    """Queries from ``flat`` on that a command may have: of one sequence."""
    group, count = args[GROUP], 1
    sequence = sequences[flat // group]
    while count < args[MOST_QUERIES] and flat + count < total:
        if sequences[(flat + count) // group] != sequence:
            break
        count += 1
    return count


@cfunc("void(intp, intp)", nopython=True, cache=True)
def attend(arguments: int, chunk: int) -> None:
    """Attends for all rows, as many queries at a time as the overlay takes."""
    args = words(arguments, ARGUMENT_WORDS)
    state = words(args[STATE], STATE_WORDS)
    depth, rows = args[DEPTH], words(args[QUERY_ROWS], 1)[0]
    sequences = carray(pointer(args[QUERY_SEQUENCES]), rows, np.int32)
    starts, counts = np.empty(depth, np.int64), np.empty(depth, np.int64)
    checked = np.empty(depth, np.int64)
    begun, sent, taken, run, flat = state[S_SUBMITTED], 0, 0, 0, 0
    fits, total = True, rows * args[GROUP]
    while taken < sent or (fits and flat < total):
        if state[S_STATUS] != FINE:
            return
        if sent - taken == depth or not fits or flat == total:
            slot = taken % depth
            _take(args, state, starts[slot], counts[slot], begun + taken, slot, checked[slot])
            taken += 1
            continue
        copy = words(args[COPIES] + 8 * run * COPY_WORDS, COPY_WORDS)
        if copy[C_SEQUENCE] != sequences[flat // args[GROUP]]:  # there is no row of it left
            run += 1
            continue
        count, slot = _count(args, sequences, flat, total), sent % depth
        fits = _pack(args, copy, flat, count, slot)
        if fits:
            _submit(args, state, copy, flat, count, slot)
            starts[slot], counts[slot] = flat, count
            checked[slot] = _check(args, state, copy, flat, count, slot)
            sent, flat = sent + 1, flat + count
    if not fits:
        state[S_STATUS] = OUTSIDE_FORMAT
