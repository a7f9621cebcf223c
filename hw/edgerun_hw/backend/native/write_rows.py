"""An instruction that copies new keys and values from the cache to where the overlay reads them.

The layout is that of ``overlay/attention_layout.py``; scales are rounded by ``encode_scales``.
"""

from __future__ import annotations

from math import frexp
from typing import Any

import numpy as np
from numba import carray, cfunc, njit

from edgerun_hw.backend.native.attention_words import (
    ARGUMENT_WORDS,
    COPIES,
    HEAD_DIM,
    KEY_DATA,
    KEY_SCALES,
    KV_HEADS,
    PAGE_HEADS,
    PAGE_TABLE,
    PAGES,
    ROWS,
    SEQUENCES,
    VALUE_DATA,
    VALUE_SCALES,
)
from edgerun_hw.backend.native.request import (
    FINE,
    OUTSIDE_FORMAT,
    S_STATUS,
    STATE,
    STATE_WORDS,
    ask,
    floats,
    pointer,
    words,
)
from edgerun_hw.backend.native.sequence_copy import (
    C_FIRST,
    C_LARGEST,
    C_MEMORY,
    C_SCALES,
    C_SEQUENCE,
    C_STOP,
    C_VALID,
    COPY_WORDS,
)
from edgerun_hw.devices.native.exchange import FLUSH
from edgerun_hw.overlay import register_map as regs
from edgerun_hw.overlay.attention import BLOCK_TOKENS, MANTISSA_BITS, MAX_EXPONENT, SCALE_BIAS
from edgerun_hw.overlay.attention_layout import PORTS, SCALE_BYTES, UNIT

BEAT, LANES, LEAD = regs.BEAT_BYTES, regs.KV_TOKENS, regs.KV_LEAD
ABSENT = -1


@njit
def encoded(scale: Any) -> Any:
    """A scale in the unit's format; -1 if it is outside."""
    if not (scale >= 0 and scale < np.inf):
        return -1
    fraction, exponent = frexp(np.float64(scale))
    mantissa = np.int64(np.rint(fraction * (1 << MANTISSA_BITS)))
    carry = mantissa >> MANTISSA_BITS
    code = exponent - 1 + carry + SCALE_BIAS
    if scale > 0 and code > MAX_EXPONENT:
        return -1
    if scale == 0 or code <= 0:
        return 0
    return code << (MANTISSA_BITS - 1) | ((mantissa >> carry) - (1 << (MANTISSA_BITS - 1)))


@njit
def pair_bytes(args: Any) -> Any:
    """Bytes of a pair of blocks, on each port."""
    return SCALE_BYTES + 2 * args[HEAD_DIM] * BEAT


@njit
def _write_head(args: Any, memory: int, slot: int, lane: int) -> Any:
    """Writes a token of one head, of which the cache has ``slot``, to a port's pair of blocks.

    Returns:
        the scale of the value as it is encoded; -1 if one of the scales is outside of the format.
    """
    dim, pair = args[HEAD_DIM], pair_bytes(args)
    scales = carray(pointer(memory), SCALE_BYTES // 2, np.uint16)
    keys = carray(pointer(memory + SCALE_BYTES), dim * BEAT, np.int8)
    later = memory + LEAD * pair + SCALE_BYTES + dim * BEAT
    values = carray(pointer(later), dim * BEAT, np.int8)
    if slot < 0:  # a page that no row sees any more
        scales[lane] = scales[LANES + lane] = 0
        return 0
    key_scale = encoded(floats(args[KEY_SCALES], slot, 1)[0])
    value_scale = encoded(floats(args[VALUE_SCALES], slot, 1)[0])
    if key_scale < 0 or value_scale < 0:
        return -1
    scales[lane], scales[LANES + lane] = key_scale, value_scale
    key = carray(pointer(args[KEY_DATA] + slot * dim), dim, np.int8)
    value = carray(pointer(args[VALUE_DATA] + slot * dim), dim, np.int8)
    for d in range(dim):
        keys[d * LANES + lane] = key[d]
    for unit in range(0, dim, UNIT):
        at = unit * LANES + lane * UNIT
        values[at : at + UNIT] = value[unit : unit + UNIT]
    return value_scale


@njit
def _write_token(args: Any, copy: Any, token: int) -> Any:
    """Writes a token of all heads, and the values' scales; whether the format holds them."""
    heads, block = args[KV_HEADS], token // BLOCK_TOKENS
    table = args[PAGE_TABLE] + 4 * copy[C_SEQUENCE] * args[PAGES]
    page = np.int64(carray(pointer(table), block + 1, np.int32)[block])
    port = token % BLOCK_TOKENS // LANES
    slot = page * args[PAGE_HEADS] * BLOCK_TOKENS + token % BLOCK_TOKENS
    scales = carray(pointer(copy[C_SCALES] + 2 * token * heads), heads, np.uint16)
    largest = carray(pointer(copy[C_LARGEST] + 2 * block * heads), heads, np.uint16)
    for head in range(heads):
        memory = copy[C_MEMORY + port] + (block * heads + head) * pair_bytes(args)
        cached = ABSENT if page < 0 else slot + head * BLOCK_TOKENS
        scale = _write_head(args, memory, cached, token % LANES)
        if scale < 0:
            return False
        scales[head] = scale
        if token % BLOCK_TOKENS == 0 or scale > largest[head]:
            largest[head] = scale
    return True


@njit
def _recall_largest(args: Any, copy: Any) -> None:
    """Of a block that is begun: what is behind its valid tokens may have been larger."""
    heads, valid = args[KV_HEADS], copy[C_VALID]
    block = valid // BLOCK_TOKENS
    largest = carray(pointer(copy[C_LARGEST] + 2 * block * heads), heads, np.uint16)
    for token in range(block * BLOCK_TOKENS, valid):
        scales = carray(pointer(copy[C_SCALES] + 2 * token * heads), heads, np.uint16)
        for head in range(heads):
            if token % BLOCK_TOKENS == 0 or scales[head] > largest[head]:
                largest[head] = scales[head]


@njit
def _flush(args: Any, state: Any, copy: Any) -> None:
    """Flushes, of every port, the blocks of pairs in which it has new tokens."""
    pair, heads = pair_bytes(args), args[KV_HEADS]
    for port in range(PORTS):
        first = (copy[C_VALID] - (port + 1) * LANES) // BLOCK_TOKENS + 1
        last = (copy[C_STOP] - 1 - port * LANES) // BLOCK_TOKENS
        if first <= last:
            nbytes = ((last - first + 1) * heads + LEAD) * pair
            ask(args, state, FLUSH, copy[C_FIRST + port] + first * heads * pair, nbytes)


@cfunc("void(intp, intp)", nopython=True, cache=True)
def write_rows(arguments: int, chunk: int) -> None:
    """Brings the copies of all sequences of a batch up to date."""
    args = words(arguments, ARGUMENT_WORDS)
    state = words(args[STATE], STATE_WORDS)
    rows = words(args[ROWS], 1)[0]
    sequences = carray(pointer(args[SEQUENCES]), rows, np.int32)
    run = 0
    for row in range(rows):
        if row and sequences[row] == sequences[row - 1]:
            continue
        copy = words(args[COPIES] + 8 * run * COPY_WORDS, COPY_WORDS)
        run += 1
        _recall_largest(args, copy)
        for token in range(copy[C_VALID], copy[C_STOP]):
            if state[S_STATUS] == FINE and not _write_token(args, copy, token):
                state[S_STATUS] = OUTSIDE_FORMAT
        if state[S_STATUS] == FINE:
            _flush(args, state, copy)
