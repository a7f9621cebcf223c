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

BEAT = regs.BEAT_BYTES
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
    per_tile = regs.TABLES if args[MULTIPLES] else regs.TABLES * regs.GROUP
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
                for place in range(used):
                    memory[at + place] = codes[source + place]
                for place in range(used, BEAT):
                    memory[at + place] = 0
                at += BEAT


@njit
def _offset(args: Any, block: int, count: int) -> Any:
    """Bytes of activations before those of a block."""
    per_tile = regs.TABLES if args[MULTIPLES] else regs.TABLES * regs.GROUP
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
def _place(row: int, column: int, count: int, beat_rows: int) -> int:
    """Where the result of a row of the overlay's matrix is among those of a command."""
    if count == 1:
        return row
    return (row // beat_rows * count + column) * beat_rows + row % beat_rows


@njit
def _adds_up(args: Any, piece: Any, results: Any, first: int, count: int) -> bool:
    """Whether results are what the weights' column sums say, modulo 2**32."""
    rows, beat_rows = piece[P_ROWS] * args[DIGITS], args[PORTS] * regs.PORT_ROWS
    start = piece[P_BLOCK] * args[BLOCK]
    width = min(args[K], start + args[BLOCK]) - start
    sums = carray(_pointer(piece[P_SUMS]), width, np.int32)
    stride = args[CODES_STRIDE]
    codes = carray(_pointer(args[CODES] + first * stride), count * stride, np.int8)
    for column in range(count):
        total = np.int64(0)
        for row in range(rows):
            total += results[_place(row, column, count, beat_rows)]
        for place in range(width):
            total -= np.int64(codes[column * stride + start + place]) * np.int64(sums[place])
        if total & WORD:
            return False
    return True


@njit
def _sum_of(args: Any, results: Any, row: int, column: int, count: int) -> Any:
    """The sum of a whole weight, as float32; digits of int8 weights are joined modulo 2**32."""
    beat_rows, digits = args[PORTS] * regs.PORT_ROWS, args[DIGITS]
    low = results[_place(row * digits, column, count, beat_rows)]
    if digits == 1:
        return np.float32(low)
    high = results[_place(row * digits + 1, column, count, beat_rows)]
    return np.float32(np.int32(np.int64(regs.SPLIT_RADIX) * high + low))


@njit
def _scale(args: Any, piece: Any, results: Any, first: int, count: int) -> None:
    """Scales a piece's sums into its outputs, with bias and residual after the last block."""
    block, blocks = piece[P_BLOCK], -(-args[K] // args[BLOCK])
    x_blocks, w_blocks = args[X_BLOCKS], args[W_BLOCKS]
    last = piece[P_FIRST] + piece[P_ROWS]
    w_scales = carray(_pointer(args[W_SCALES]), last * w_blocks, np.float32)
    for number in range(args[OUTPUT_COUNT]):
        output = _words(args[OUTPUTS] + number * OUTPUT_WORDS * 8, OUTPUT_WORDS)
        begin = max(piece[P_FIRST], output[O_FIRST])
        end = min(last, output[O_FIRST] + output[O_ROWS])
        for column in range(count if begin < end else 0):
            row = first + column
            x_scales = carray(_pointer(args[X_SCALES] + 4 * row * x_blocks), x_blocks, np.float32)
            x_scale = x_scales[min(block, x_blocks - 1)]
            out = _floats(output[O_OUT], row * output[O_STRIDE], output[O_ROWS])
            for n in range(begin, end):
                value = _sum_of(args, results, n - piece[P_FIRST], column, count)
                w_scale = w_scales[n * w_blocks + min(block, w_blocks - 1)]
                at = n - output[O_FIRST]
                if x_blocks == 1 and w_blocks == 1:
                    out[at] = _finished(output, row, at, (value * x_scale) * w_scale)
                    continue
                before = out[at] if block else np.float32(0)
                value = before + value * (w_scale * x_scale)
                out[at] = _finished(output, row, at, value) if block == blocks - 1 else value


@njit
def _floats(address: int, first: int, count: int) -> Any:
    return carray(_pointer(address + 4 * first), count, np.float32)


@njit
def _finished(output: Any, row: int, at: int, value: float) -> float:
    """Adds bias and residual, in the order of the CPU's kernels."""
    if output[O_BIAS]:
        value = value + _floats(output[O_BIAS], 0, output[O_ROWS])[at]
    if output[O_RESIDUAL]:
        start = row * output[O_RESIDUAL_STRIDE]
        value = value + _floats(output[O_RESIDUAL], start, output[O_ROWS])[at]
    return value


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
    words = piece[P_BEATS] * count * args[PORTS] * regs.PORT_ROWS
    results = carray(_pointer(memory), words, np.int32)
    if not _adds_up(args, piece, results, first, count):
        state[S_STATUS], state[S_DETAIL] = WRONG_SUMS, piece[P_ROWS]
        return
    _scale(args, piece, results, first, count)


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
