"""Instructions that run a chain: ``queue_chain`` on the overlay, ``compute_chain`` in its stead.

Both work on one table of commands and one layout of the memory, and give the same bits: what the
definitions of the glue unit and of scaled results say.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import carray, cfunc, njit

from edgerun_hw.backend.native.chain.rows import RESIDUAL, TILE, round_row
from edgerun_hw.backend.native.chain.words import (
    ADDRESS,
    ARGUMENT_WORDS,
    BEATS,
    CHECK_EVERY,
    CHECK_WORDS,
    CHECKS,
    COMMAND_WORDS,
    COMMANDS,
    COUNT,
    CYCLES,
    DEPTH,
    FIRST,
    INTEGERS,
    K_COMMANDS,
    K_RUNS,
    LAST_AT,
    LAST_COUNT,
    MEMORY,
    MODE,
    NBYTES,
    NORM,
    O_FIRST,
    O_OUT,
    O_ROWS,
    OUTPUT_COUNT,
    OUTPUT_WORDS,
    OUTPUTS,
    RESIDUAL_AT,
    RESIDUAL_COUNT,
    RESIDUAL_IN,
    RESIDUAL_OUT,
    ROW,
    ROW_AT,
    ROW_COUNT,
    ROWS,
    S_ADDRESS,
    S_AT,
    SCALE_AT,
    SCALES,
    SCRATCH,
    SUMS,
    TILES,
    WEIGHTS,
    Y_BYTES,
    K,
    X,
    Y,
)
from edgerun_hw.backend.native.request import (
    FINE,
    LINE_BYTES,
    PORTS,
    S_CHAINED,
    S_STATUS,
    S_SUBMITTED,
    STATE,
    STATE_WORDS,
    WORD,
    WRONG_CHAIN,
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

BEAT = regs.BEAT_BYTES
GLUE, NORMS, GATE = regs.CMD_MODE_GLUE.mask, regs.CMD_MODE_NORM.mask, regs.CMD_MODE_GATE
SMALLEST = np.float32(2.0**-126)


@njit
def _uints(address: int, count: int) -> Any:
    return carray(pointer(address), count, np.uint32)


@njit
def _glue(args: Any, command: Any, results: int) -> None:
    """Computes a glue command by the definition.

    Args:
        args: of the chain.
        command: its words.
        results: address of what the command leaves.
    """
    count, gate = command[TILES], command[MODE] >> GATE.lsb & 3
    memory, groups = args[MEMORY], -(-command[TILES] // 4)
    x = _uints(memory + command[X], 8 + count)
    up = _uints(memory + command[S_AT] if gate else memory, count)
    norm = command[NORM] != 0
    weight = _uints(command[NORM] if norm else memory, count)
    sums = _uints(results, 4 * groups if gate == RESIDUAL else 0)
    at = results + 4 * len(sums)
    if gate == RESIDUAL:
        sums[count:] = 0
    codes = carray(pointer(at), command[BEATS] * BEAT, np.int8)
    constants = np.array([x[0], x[4], x[5], x[6]], np.uint32)
    # What a residual sum writes over its row has been read by then.
    scale = round_row(gate, norm, constants, x[8:], up, weight, sums, codes)
    last = _uints(at + command[BEATS] * BEAT, 4)
    last[:] = 0
    last[0] = scale


@njit
def _multiply(args: Any, command: Any) -> None:
    """Computes a matrix command: sums in whole numbers, rounded, times the row's scale."""
    K_, rows = command[K], command[ROWS]
    tiles = carray(pointer(args[MEMORY] + command[X]), command[TILES] * BEAT, np.int8)
    integers = carray(pointer(command[INTEGERS]), rows * K_, np.int8)
    scales = floats(command[SCALES], 0, rows)
    out = floats(args[MEMORY] + command[Y], 0, rows)
    codes = np.empty(K_, np.int32)
    for place in range(K_):
        codes[place] = tiles[place // TILE * BEAT + place % TILE]
    for row in range(rows):
        weights, total = integers[row * K_ : (row + 1) * K_], np.int32(0)
        for place in range(K_):
            total += codes[place] * np.int32(weights[place])
        product = np.float32(total) * scales[row]
        out[row] = product if abs(product) >= SMALLEST else np.float32(0) * product


@njit
def _adds_up(args: Any, command: Any) -> Any:
    """Whether a matrix' results, without their scales, are what its columns' sums say."""
    if command[SUMS] == 0:
        return True
    tiles = carray(pointer(args[MEMORY] + command[X]), command[TILES] * BEAT, np.int8)
    sums = carray(pointer(command[SUMS]), command[K], np.int32)
    scales = floats(command[SCALES], 0, command[ROWS])
    out = floats(args[MEMORY] + command[Y], 0, command[ROWS])
    total = np.float64(0)
    for row in range(command[ROWS]):
        total += np.rint(np.float64(out[row]) / np.float64(scales[row]))
    for place in range(command[K]):
        total -= np.float64(sums[place]) * tiles[place // TILE * BEAT + place % TILE]
    return total == 0


@njit
def _submit(args: Any, state: Any, command: Any) -> None:
    """Queues a command as soon as there is room."""
    address = args[ADDRESS]
    ask(args, state, WRITE, regs.CMD_MODE, command[MODE])
    ask(args, state, WRITE, regs.CMD_ROW_BEATS, command[BEATS])
    ask(args, state, WRITE, regs.CMD_TILES, command[TILES])
    ask(args, state, WRITE, regs.CMD_COLUMNS, 1)
    ask(args, state, WRITE, regs.CMD_TAG, state[S_SUBMITTED] & WORD)
    write_address(args, state, regs.CMD_X, address + command[X])
    write_address(args, state, regs.CMD_Y, address + command[Y])
    second = command[S_ADDRESS] if command[S_ADDRESS] else address + command[S_AT]
    write_address(args, state, regs.CMD_S, second)
    for port in range(args[PORTS]):
        write_address(args, state, regs.CMD_W[0] + 8 * port, command[WEIGHTS + port])
    push(args, state)


@njit
def _lines(args: Any, state: Any, asked: int, at: int, nbytes: int) -> None:
    """Flushes or invalidates whole lines of the memory."""
    before = at % LINE_BYTES
    synchronise(args, state, asked, args[FIRST] + at - before, before + nbytes)


@njit
def _checked(args: Any, state: Any, command: Any, cycles: int) -> None:
    """Runs a command alone, and computes it again."""
    wait_for(args, state, state[S_SUBMITTED] - 1, cycles)
    _lines(args, state, INVALIDATE, 0, args[NBYTES])
    if state[S_STATUS] != FINE:
        return
    is_glue = command[MODE] & GLUE != 0
    if is_glue:  # before the command, which may write over its row
        scratch = carray(pointer(args[SCRATCH]), args[NBYTES], np.uint8)
        _glue(args, command, args[SCRATCH])
    _submit(args, state, command)
    if not wait_for(args, state, state[S_SUBMITTED] - 1, command[CYCLES]):
        return
    _lines(args, state, INVALIDATE, 0, args[NBYTES])
    if is_glue:
        results = carray(pointer(args[MEMORY] + command[Y]), command[Y_BYTES], np.uint8)
        right = (results == scratch[: command[Y_BYTES]]).all()
    else:
        right = _adds_up(args, command)
    words(args[CHECKS], CHECK_WORDS)[K_COMMANDS] += 1
    if not right and state[S_STATUS] == FINE:
        state[S_STATUS] = WRONG_CHAIN


@njit
def _bring(args: Any) -> None:
    """Writes what the chain begins with into its memory."""
    floats(args[MEMORY] + args[ROW_AT], 0, args[ROW_COUNT])[:] = floats(
        args[ROW], 0, args[ROW_COUNT]
    )
    if args[RESIDUAL_IN]:
        count = args[RESIDUAL_COUNT]
        floats(args[MEMORY] + args[RESIDUAL_AT], 0, count)[:] = floats(args[RESIDUAL_IN], 0, count)


@njit
def _take(args: Any) -> None:
    """Gives the last matrix' results their scale, and the residual to who wants it."""
    scale = floats(args[MEMORY] + args[SCALE_AT], 0, 1)[0]
    for number in range(args[OUTPUT_COUNT]):
        output = words(args[OUTPUTS] + number * OUTPUT_WORDS * 8, OUTPUT_WORDS)
        values = floats(args[MEMORY] + args[LAST_AT], output[O_FIRST], output[O_ROWS])
        out = floats(output[O_OUT], 0, output[O_ROWS])
        for row in range(output[O_ROWS]):
            out[row] = values[row] * scale
    if args[RESIDUAL_OUT]:
        count = args[RESIDUAL_COUNT]
        floats(args[RESIDUAL_OUT], 0, count)[:] = floats(args[MEMORY] + args[RESIDUAL_AT], 0, count)


@njit
def _queue(args: Any, state: Any) -> Any:
    """Queues all commands as there is room; the cycles that they should take."""
    runs, cycles = words(args[CHECKS], CHECK_WORDS)[K_RUNS], 0
    for number in range(args[COUNT]):
        command = words(args[COMMANDS] + number * COMMAND_WORDS * 8, COMMAND_WORDS)
        cycles += command[CYCLES]
        if number >= args[DEPTH]:
            wait_for(args, state, state[S_SUBMITTED] - args[DEPTH], cycles)
        if state[S_STATUS] != FINE:
            return cycles
        if (state[S_CHAINED] + runs) % CHECK_EVERY == 0:
            _checked(args, state, command, cycles)
        else:
            _submit(args, state, command)
        state[S_CHAINED] += 1
    return cycles


@cfunc("void(intp, intp)", nopython=True, cache=True)
def queue_chain(arguments: int, chunk: int) -> None:
    """Queues a chain's commands on the overlay, and waits once for all."""
    args = words(arguments, ARGUMENT_WORDS)
    state = words(args[STATE], STATE_WORDS)
    if state[S_STATUS] != FINE:
        return
    _bring(args)
    _lines(args, state, FLUSH, args[ROW_AT], 4 * args[ROW_COUNT])
    if args[RESIDUAL_IN]:
        _lines(args, state, FLUSH, args[RESIDUAL_AT], 4 * args[RESIDUAL_COUNT])
    cycles = _queue(args, state)
    if not wait_for(args, state, state[S_SUBMITTED] - 1, cycles):
        return
    _lines(args, state, INVALIDATE, args[SCALE_AT], BEAT)
    if args[LAST_COUNT]:
        _lines(args, state, INVALIDATE, args[LAST_AT], 4 * args[LAST_COUNT])
    if args[RESIDUAL_OUT]:
        _lines(args, state, INVALIDATE, args[RESIDUAL_AT], 4 * args[RESIDUAL_COUNT])
    if state[S_STATUS] == FINE:
        _take(args)


@cfunc("void(intp, intp)", nopython=True, cache=True)
def compute_chain(arguments: int, chunk: int) -> None:
    """Computes a chain by the definition, on memory of the processor's."""
    args = words(arguments, ARGUMENT_WORDS)
    _bring(args)
    for number in range(args[COUNT]):
        command = words(args[COMMANDS] + number * COMMAND_WORDS * 8, COMMAND_WORDS)
        if command[MODE] & GLUE:
            _glue(args, command, args[MEMORY] + command[Y])
        else:
            _multiply(args, command)
    _take(args)
