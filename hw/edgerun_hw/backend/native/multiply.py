"""An instruction of a native program that multiplies on the overlay.

It packs activations, queues the commands of a matrix, waits, checks the sums and scales them: what
``products.py`` does in NumPy, in the same order of operations and with the same bits. Argument
blocks are words; addresses are in them as numbers.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import carray, cfunc, njit, types
from numba.extending import intrinsic

from edgerun.kernels.lang.intrinsics import call_chunk
from edgerun_hw.devices.native.exchange import (
    ANSWER,
    ASKED,
    FIRST,
    FLUSH,
    INVALIDATE,
    READ,
    SECOND,
    WAIT,
    WRITE,
)
from edgerun_hw.overlay import register_map as regs

# Words of the argument block.
(
    FUNCTION,
    CONTEXT,
    STATE,
    ROWS,
    CODES,
    CODES_STRIDE,
    X_SCALES,
    X_BLOCKS,
    COLUMNS,
    PORTS,
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
    X_BYTES,
    RESULTS,
    OUTPUTS,
    OUTPUT_COUNT,
    PATIENCE,
    ARGUMENT_WORDS,
) = range(27)
# Words of a piece, before the addresses of its weights.
P_BLOCK, P_FIRST, P_ROWS, P_BEATS, P_TILES, P_SUMS, P_CYCLES, P_WEIGHTS, PIECE_WORDS = *range(8), 12
# Words of a buffer of results.
R_MEMORY, R_ADDRESS, RESULT_WORDS = range(3)
# Words of an output: rows of the matrix, and where they go.
O_FIRST, O_ROWS, O_OUT, O_STRIDE, O_BIAS, O_RESIDUAL, O_RESIDUAL_STRIDE, OUTPUT_WORDS = range(8)
# Words of what all instructions of a program share: a request, and how it went.
S_STATUS, S_DETAIL, S_SUBMITTED, S_COMMANDS, STATE_WORDS = range(4, 9)
# How it went; after anything but FINE the rest of the program does nothing.
FINE, FLAGGED, STUCK, WRONG_SUMS, UNREACHABLE = range(5)

BEAT, TERNARY_TILE = regs.BEAT_BYTES, regs.TABLES * regs.GROUP
ALL_ERRORS = 0x7F
ALL_IRQS = regs.IRQ_COMPLETED.mask | regs.IRQ_ERROR.mask
MIN_POLL_CYCLES, MAX_POLL_CYCLES = 64, 1 << 16
PATIENCE_FACTOR = 16
MODULUS = 1 << 32
WORD = MODULUS - 1


@intrinsic
def _pointer(typingctx, address):  # type: ignore[no-untyped-def]
    """An address as the pointer that ``carray`` takes."""

    def codegen(context, builder, sig, args):  # type: ignore[no-untyped-def]
        return builder.inttoptr(args[0], ir.IntType(8).as_pointer())

    return types.voidptr(types.intp), codegen


@njit
def _words(address: int, count: int) -> Any:
    return carray(_pointer(address), count, np.int64)


@njit
def _ask(args: Any, state: Any, asked: int, first: int, second: int) -> Any:
    """Asks the overlay for something; remembers if it cannot be reached."""
    state[ASKED], state[FIRST], state[SECOND] = asked, first, second
    call_chunk(args[FUNCTION], args[CONTEXT], args[STATE])
    if state[ANSWER] < 0 and state[S_STATUS] == FINE:
        state[S_STATUS] = UNREACHABLE
    return state[ANSWER]


@njit
def _pack(args: Any, first: int, count: int) -> None:
    """Packs activations of some rows as the overlay reads them: ``pack_activations``."""
    per_tile = regs.TABLES if args[MULTIPLES] else TERNARY_TILE
    memory = carray(_pointer(args[X_MEMORY]), args[X_BYTES], np.int8)
    stride, K_ = args[CODES_STRIDE], args[K]
    codes = carray(_pointer(args[CODES] + first * stride), count * stride, np.int8)
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


@njit
def _offset(args: Any, block: int, count: int) -> Any:
    """Bytes of activations before those of a block."""
    per_tile = regs.TABLES if args[MULTIPLES] else TERNARY_TILE
    return block * (-(-args[BLOCK] // per_tile)) * count * BEAT


@njit
def _write_address(args: Any, state: Any, register: int, address: int) -> None:
    _ask(args, state, WRITE, register, address & WORD)
    _ask(args, state, WRITE, register + 4, address >> 32)


@njit
def _submit(args: Any, state: Any, piece: Any, count: int, y: int) -> None:
    """Queues the command of a piece."""
    _ask(args, state, WRITE, regs.CMD_MODE, args[MULTIPLES] << regs.CMD_MODE_MULTIPLES.lsb)
    _ask(args, state, WRITE, regs.CMD_ROW_BEATS, piece[P_BEATS])
    _ask(args, state, WRITE, regs.CMD_TILES, piece[P_TILES])
    _ask(args, state, WRITE, regs.CMD_COLUMNS, count)
    _ask(args, state, WRITE, regs.CMD_TAG, state[S_SUBMITTED] & WORD)
    _write_address(args, state, regs.CMD_X, args[X_ADDRESS] + _offset(args, piece[P_BLOCK], count))
    _write_address(args, state, regs.CMD_Y, y)
    for port in range(args[PORTS]):
        _write_address(args, state, regs.CMD_W[0] + 8 * port, piece[P_WEIGHTS + port])
    _ask(args, state, WRITE, regs.CMD_PUSH, 1)
    state[S_SUBMITTED] += 1
    state[S_COMMANDS] += 1


@njit
def _wait(args: Any, state: Any, number: int, cycles: int) -> Any:
    """Waits until command ``number`` is complete; the limits are the driver's."""
    waited, limit = 0, args[PATIENCE] + PATIENCE_FACTOR * cycles
    pause = min(max(cycles // 4, MIN_POLL_CYCLES), MAX_POLL_CYCLES)
    while state[S_STATUS] == FINE:
        _ask(args, state, WRITE, regs.IRQ, ALL_IRQS)
        # Behind by half of the range or more is not complete yet.
        ahead = (_ask(args, state, READ, regs.COMPLETED, 0) - number - 1) & WORD
        # Read after COMPLETED: a command counted there has set its flag before.
        flags = _ask(args, state, READ, regs.ERROR, 0) & ALL_ERRORS
        if flags:
            state[S_STATUS], state[S_DETAIL] = FLAGGED, flags
        elif ahead < MODULUS // 2:
            return state[S_STATUS] == FINE
        elif waited > limit:
            state[S_STATUS], state[S_DETAIL] = STUCK, waited
        else:
            _ask(args, state, WAIT, pause, 0)
            waited += pause
    return False


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
    weights = carray(_pointer(piece[P_SUMS]), width, np.int32)
    codes = carray(_pointer(args[CODES] + row * args[CODES_STRIDE] + start), width, np.int8)
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
    x_scales = _floats(args[X_SCALES], row * x_blocks, x_blocks)
    x_scale, w_block = x_scales[min(block, x_blocks - 1)], min(block, w_blocks - 1)
    last = piece[P_FIRST] + piece[P_ROWS]
    w_scales = _floats(args[W_SCALES], 0, last * w_blocks)
    for number in range(args[OUTPUT_COUNT]):
        output = _words(args[OUTPUTS] + number * OUTPUT_WORDS * 8, OUTPUT_WORDS)
        begin = max(piece[P_FIRST], output[O_FIRST])
        length = min(last, output[O_FIRST] + output[O_ROWS]) - begin
        if length <= 0:
            continue
        at, part = begin - output[O_FIRST], values[begin - piece[P_FIRST] :][:length]
        out = _floats(output[O_OUT], row * output[O_STRIDE] + at, length)
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
def _floats(address: int, first: int, count: int) -> Any:
    return carray(_pointer(address + 4 * first), count, np.float32)


@njit
def _add(values: Any, address: int, first: int) -> None:
    """Adds numbers at an address, from ``first`` on."""
    others = _floats(address, first, len(values))
    for place in range(len(values)):
        values[place] += others[place]


@njit
def _take(args: Any, state: Any, index: int, number: int, first: int, count: int) -> None:
    """Waits for the ``index``-th piece and takes its results."""
    piece = _words(args[PIECES] + index * PIECE_WORDS * 8, PIECE_WORDS)
    if not _wait(args, state, number, piece[P_CYCLES]):
        return
    slot = index % args[DEPTH]
    if _ask(args, state, INVALIDATE, 1 + slot, 0) < 0:
        return
    memory = _words(args[RESULTS] + slot * RESULT_WORDS * 8, RESULT_WORDS)[R_MEMORY]
    beat_rows, rows = args[PORTS] * regs.PORT_ROWS, piece[P_ROWS] * args[DIGITS]
    results = carray(_pointer(memory), piece[P_BEATS] * count * beat_rows, np.int32)
    for column in range(count):
        sums = _column(results, column, count, beat_rows, rows)
        if not _adds_up(args, piece, sums, first + column):
            state[S_STATUS], state[S_DETAIL] = WRONG_SUMS, piece[P_ROWS]
            return
        _scale(args, piece, _whole(sums, args[DIGITS]), first + column)


@cfunc("void(intp, intp)", nopython=True, cache=True)
def multiply(arguments: int, chunk: int) -> None:
    """Multiplies all rows by a matrix, as many at a time as the overlay has columns."""
    args = _words(arguments, ARGUMENT_WORDS)
    state = _words(args[STATE], STATE_WORDS)
    rows, depth, pieces = _words(args[ROWS], 1)[0], args[DEPTH], args[PIECE_COUNT]
    for first in range(0, rows, args[COLUMNS]):
        count = min(args[COLUMNS], rows - first)
        if state[S_STATUS] != FINE:
            return
        _pack(args, first, count)
        _ask(args, state, FLUSH, 0, 0)
        begun = state[S_SUBMITTED]
        for index in range(pieces):
            if index >= depth:
                _take(args, state, index - depth, begun + index - depth, first, count)
            if state[S_STATUS] != FINE:
                return
            piece = _words(args[PIECES] + index * PIECE_WORDS * 8, PIECE_WORDS)
            y = _words(args[RESULTS] + index % depth * RESULT_WORDS * 8, RESULT_WORDS)[R_ADDRESS]
            _submit(args, state, piece, count, y)
        for index in range(max(0, pieces - depth), pieces):
            _take(args, state, index, begun + index, first, count)
