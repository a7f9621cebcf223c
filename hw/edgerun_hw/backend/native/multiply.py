"""An instruction of a native program that multiplies on the overlay.

It packs activations, queues the commands of a matrix, waits, checks the sums and scales them: what
``products.py`` does in NumPy, in the same order of operations and with the same bits.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import carray, cfunc, njit

from edgerun_hw.backend.native.request import (
    COMMON_WORDS,
    FINE,
    PORTS,
    R_ADDRESS,
    R_FIRST,
    R_MEMORY,
    RESULT_WORDS,
    S_DETAIL,
    S_STATUS,
    S_SUBMITTED,
    STATE,
    STATE_WORDS,
    WORD,
    WRONG_SUMS,
    ask,
    floats,
    pointer,
    push,
    synchronise,
    wait_for,
    words,
    write_address,
)
from edgerun_hw.devices.native.exchange import FLUSH, INVALIDATE, WRITE
from edgerun_hw.overlay import register_map as regs

# Words of the argument block, behind those of every block.
(
    ROWS,
    CODES,
    CODES_STRIDE,
    X_SCALES,
    X_BLOCKS,
    COLUMNS,
    DEPTH,
    MULTIPLES,
    DIGITS,
    BLOCK,
    K,
    W_SCALES,
    W_BLOCKS,
    PIECES,
    PIECE_COUNT,
    X_MEMORY,
    X_ADDRESS,
    X_FIRST,
    X_BYTES,
    RESULTS,
    OUTPUTS,
    OUTPUT_COUNT,
    ARGUMENT_WORDS,
) = range(COMMON_WORDS, COMMON_WORDS + 23)
# Words of a piece, before the addresses of its weights.
P_BLOCK, P_FIRST, P_ROWS, P_BEATS, P_TILES, P_SUMS, P_CYCLES, P_WEIGHTS, PIECE_WORDS = *range(8), 12
# Words of an output: rows of the matrix, and where they go.
O_FIRST, O_ROWS, O_OUT, O_STRIDE, O_BIAS, O_RESIDUAL, O_RESIDUAL_STRIDE, OUTPUT_WORDS = range(8)

BEAT, TERNARY_TILE = regs.BEAT_BYTES, regs.TABLES * regs.GROUP


@njit
def _pack(args: Any, first: int, count: int) -> Any:
    """Packs activations of some rows as the overlay reads them: ``pack_activations``.

    Returns:
        bytes that they take.
    """
    per_tile = regs.TABLES if args[MULTIPLES] else TERNARY_TILE
    memory = carray(pointer(args[X_MEMORY]), args[X_BYTES], np.int8)
    stride, K_ = args[CODES_STRIDE], args[K]
    codes = carray(pointer(args[CODES] + first * stride), count * stride, np.int8)
    at = 0
    for start in range(0, K_, args[BLOCK]):
        end = min(K_, start + args[BLOCK])
        for tile in range(start, end, per_tile):
            used = min(per_tile, end - tile)
            for column in range(count):
                source = column * stride + tile
                if used == TERNARY_TILE:  # a number that the compiler knows
                    for place in range(TERNARY_TILE):
                        memory[at + place] = codes[source + place]
                    memory[at + TERNARY_TILE] = 0
                else:
                    for place in range(BEAT):
                        memory[at + place] = codes[source + place] if place < used else 0
                at += BEAT
    return at


@njit
def _offset(args: Any, block: int, count: int) -> Any:
    """Bytes of activations before those of a block."""
    per_tile = regs.TABLES if args[MULTIPLES] else TERNARY_TILE
    return block * (-(-args[BLOCK] // per_tile)) * count * BEAT


@njit
def _submit(args: Any, state: Any, piece: Any, count: int, y: int) -> None:
    """Queues the command of a piece."""
    ask(args, state, WRITE, regs.CMD_MODE, args[MULTIPLES] << regs.CMD_MODE_MULTIPLES.lsb)
    ask(args, state, WRITE, regs.CMD_ROW_BEATS, piece[P_BEATS])
    ask(args, state, WRITE, regs.CMD_TILES, piece[P_TILES])
    ask(args, state, WRITE, regs.CMD_COLUMNS, count)
    ask(args, state, WRITE, regs.CMD_TAG, state[S_SUBMITTED] & WORD)
    write_address(args, state, regs.CMD_X, args[X_ADDRESS] + _offset(args, piece[P_BLOCK], count))
    write_address(args, state, regs.CMD_Y, y)
    for port in range(args[PORTS]):
        write_address(args, state, regs.CMD_W[0] + 8 * port, piece[P_WEIGHTS + port])
    push(args, state)


@njit
def _column(results: Any, column: int, count: int, beat_rows: int, rows: int) -> Any:
    """A column's results by row, int32 ``[rows]``: those of a beat lie together."""
    if count == 1:
        return results[:rows]
    gathered = np.empty(rows, np.int32)
    for row in range(0, rows, beat_rows):
        start = row * count + column * beat_rows
        for place in range(min(beat_rows, rows - row)):
            gathered[row + place] = results[start + place]
    return gathered


@njit
def _adds_up(args: Any, piece: Any, sums: Any, row: int) -> Any:
    """Whether a column's sums are what the weights' column sums say, modulo 2**32."""
    start = piece[P_BLOCK] * args[BLOCK]
    width = min(args[K], start + args[BLOCK]) - start
    weights = carray(pointer(piece[P_SUMS]), width, np.int32)
    codes = carray(pointer(args[CODES] + row * args[CODES_STRIDE] + start), width, np.int8)
    total = np.int64(0)
    for place in range(len(sums)):
        total += np.int64(sums[place])
    for place in range(width):
        total -= np.int64(codes[place]) * np.int64(weights[place])
    return total & WORD == 0


@njit
def _whole(sums: Any, digits: int) -> Any:
    """Sums of whole weights, float32; digits of int8 weights are joined modulo 2**32."""
    values = np.empty(len(sums) // digits, np.float32)
    if digits == 1:
        for row in range(len(values)):
            values[row] = np.float32(sums[row])
        return values
    for row in range(len(values)):
        high = np.int64(regs.SPLIT_RADIX) * sums[2 * row + 1]
        values[row] = np.float32(np.int32(high + sums[2 * row]))
    return values


@njit
def _scale(args: Any, piece: Any, values: Any, row: int) -> None:
    """Scales a column's sums into its outputs, with bias and residual after the last block."""
    block, x_blocks, w_blocks = piece[P_BLOCK], args[X_BLOCKS], args[W_BLOCKS]
    is_last = (block + 1) * args[BLOCK] >= args[K]
    x_scales = floats(args[X_SCALES], row * x_blocks, x_blocks)
    x_scale, w_block = x_scales[min(block, x_blocks - 1)], min(block, w_blocks - 1)
    last = piece[P_FIRST] + piece[P_ROWS]
    w_scales = floats(args[W_SCALES], 0, last * w_blocks)
    for number in range(args[OUTPUT_COUNT]):
        output = words(args[OUTPUTS] + number * OUTPUT_WORDS * 8, OUTPUT_WORDS)
        begin = max(piece[P_FIRST], output[O_FIRST])
        length = min(last, output[O_FIRST] + output[O_ROWS]) - begin
        if length <= 0:
            continue
        at, part = begin - output[O_FIRST], values[begin - piece[P_FIRST] :][:length]
        out = floats(output[O_OUT], row * output[O_STRIDE] + at, length)
        # Out of place, because the residual may be there.
        finished = np.empty(length, np.float32)
        if x_blocks == 1 and w_blocks == 1:
            for n in range(length):
                finished[n] = (part[n] * x_scale) * w_scales[begin + n]
        else:
            for n in range(length):
                scale = w_scales[(begin + n) * w_blocks + w_block] * x_scale
                finished[n] = (out[n] if block else np.float32(0)) + part[n] * scale
        if is_last and output[O_BIAS]:
            _add(finished, output[O_BIAS], at)
        if is_last and output[O_RESIDUAL]:
            _add(finished, output[O_RESIDUAL], row * output[O_RESIDUAL_STRIDE] + at)
        out[:] = finished


@njit
def _add(values: Any, address: int, first: int) -> None:
    """Adds numbers at an address, from ``first`` on."""
    others = floats(address, first, len(values))
    for place in range(len(values)):
        values[place] += others[place]


@njit
def _take(args: Any, state: Any, index: int, number: int, first: int, count: int) -> None:
    """Waits for the ``index``-th piece and takes its results."""
    piece = words(args[PIECES] + index * PIECE_WORDS * 8, PIECE_WORDS)
    if not wait_for(args, state, number, piece[P_CYCLES]):
        return
    slot = index % args[DEPTH]
    place = words(args[RESULTS] + slot * RESULT_WORDS * 8, RESULT_WORDS)
    beat_rows, rows = args[PORTS] * regs.PORT_ROWS, piece[P_ROWS] * args[DIGITS]
    results = carray(pointer(place[R_MEMORY]), piece[P_BEATS] * count * beat_rows, np.int32)
    if synchronise(args, state, INVALIDATE, place[R_FIRST], 4 * len(results)) < 0:
        return
    for column in range(count):
        sums = _column(results, column, count, beat_rows, rows)
        if not _adds_up(args, piece, sums, first + column):
            state[S_STATUS], state[S_DETAIL] = WRONG_SUMS, piece[P_ROWS]
            return
        _scale(args, piece, _whole(sums, args[DIGITS]), first + column)


@cfunc("void(intp, intp)", nopython=True, cache=True)
def multiply(arguments: int, chunk: int) -> None:
    """Multiplies all rows by a matrix, as many at a time as the overlay has columns."""
    args = words(arguments, ARGUMENT_WORDS)
    state = words(args[STATE], STATE_WORDS)
    rows, depth, pieces = words(args[ROWS], 1)[0], args[DEPTH], args[PIECE_COUNT]
    for first in range(0, rows, args[COLUMNS]):
        count = min(args[COLUMNS], rows - first)
        if state[S_STATUS] != FINE:
            return
        nbytes = _pack(args, first, count)
        synchronise(args, state, FLUSH, args[X_FIRST], nbytes)
        begun = state[S_SUBMITTED]
        for index in range(pieces):
            if index >= depth:
                _take(args, state, index - depth, begun + index - depth, first, count)
            if state[S_STATUS] != FINE:
                return
            piece = words(args[PIECES] + index * PIECE_WORDS * 8, PIECE_WORDS)
            y = words(args[RESULTS] + index % depth * RESULT_WORDS * 8, RESULT_WORDS)[R_ADDRESS]
            _submit(args, state, piece, count, y)
        for index in range(max(0, pieces - depth), pieces):
            _take(args, state, index, begun + index, first, count)
