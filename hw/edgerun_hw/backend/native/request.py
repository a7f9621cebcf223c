"""What instructions of a program that use the overlay have in common: requests, and waiting.

Their argument blocks are words; addresses are in them as numbers, and the first words of all of
them are the same. Their program has one *state*: a request, and how the program went.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import carray, njit, types
from numba.extending import intrinsic

from edgerun.kernels.lang.intrinsics import call_chunk
from edgerun_hw.devices.native.exchange import ANSWER, ASKED, FIRST, READ, SECOND, WAIT, WRITE
from edgerun_hw.overlay import register_map as regs

# The first words of an argument block.
FUNCTION, CONTEXT, STATE, PATIENCE, PORTS, COMMON_WORDS = range(6)
# Words of the state, behind those of a request.
S_STATUS, S_DETAIL, S_SUBMITTED, S_COMMANDS, S_ATTENDED, S_CHAINED, STATE_WORDS = range(4, 11)
# How it went; after anything but FINE the rest of the program does nothing.
FINE, FLAGGED, STUCK, WRONG_SUMS, UNREACHABLE, WRONG_ATTENTION, OUTSIDE_FORMAT = range(7)
WRONG_CHAIN = 7
# Words of a buffer of results; where it begins in the contiguous memory comes last.
R_MEMORY, R_ADDRESS, R_FIRST, RESULT_WORDS = range(4)
LINE_BYTES = 64  # of the processor's caches

ALL_ERRORS = 0x7F
ALL_IRQS = regs.IRQ_COMPLETED.mask | regs.IRQ_ERROR.mask
MIN_POLL_CYCLES, MAX_POLL_CYCLES = 64, 1 << 16
PATIENCE_FACTOR = 16
MODULUS = 1 << 32
WORD = MODULUS - 1


@intrinsic
def pointer(typingctx, address):  # type: ignore[no-untyped-def]
    """An address as the pointer that ``carray`` takes."""

    def codegen(context, builder, sig, args):  # type: ignore[no-untyped-def]
        return builder.inttoptr(args[0], ir.IntType(8).as_pointer())

    return types.voidptr(types.intp), codegen


@njit
def words(address: int, count: int) -> Any:
    """The int64 words at an address."""
    return carray(pointer(address), count, np.int64)


@njit
def floats(address: int, first: int, count: int) -> Any:
    """The float32 numbers at an address from ``first`` on."""
    return carray(pointer(address + 4 * first), count, np.float32)


@njit
def ask(args: Any, state: Any, asked: int, first: int, second: int) -> Any:
    """Asks the overlay for something; remembers if it cannot be reached."""
    state[ASKED], state[FIRST], state[SECOND] = asked, first, second
    call_chunk(args[FUNCTION], args[CONTEXT], args[STATE])
    if state[ANSWER] < 0 and state[S_STATUS] == FINE:
        state[S_STATUS] = UNREACHABLE
    return state[ANSWER]


@njit
def synchronise(args: Any, state: Any, asked: int, first: int, nbytes: int) -> Any:
    """Flushes or invalidates bytes of the contiguous memory from the start of a line on."""
    return ask(args, state, asked, first, -(-nbytes // LINE_BYTES) * LINE_BYTES)


@njit
def write_address(args: Any, state: Any, register: int, address: int) -> None:
    """Writes a device address to its two registers."""
    ask(args, state, WRITE, register, address & WORD)
    ask(args, state, WRITE, register + 4, address >> 32)


@njit
def push(args: Any, state: Any) -> None:
    """Queues the command whose registers were written."""
    ask(args, state, WRITE, regs.CMD_PUSH, 1)
    state[S_SUBMITTED] += 1
    state[S_COMMANDS] += 1


@njit
def wait_for(args: Any, state: Any, number: int, cycles: int) -> Any:
    """Waits until command ``number`` is complete; the limits are the driver's."""
    waited, limit = 0, args[PATIENCE] + PATIENCE_FACTOR * cycles
    pause = min(max(cycles // 4, MIN_POLL_CYCLES), MAX_POLL_CYCLES)
    while state[S_STATUS] == FINE:
        ask(args, state, WRITE, regs.IRQ, ALL_IRQS)
        # Behind by half of the range or more is not complete yet.
        ahead = (ask(args, state, READ, regs.COMPLETED, 0) - number - 1) & WORD
        # Read after COMPLETED: a command counted there has set its flag before.
        flags = ask(args, state, READ, regs.ERROR, 0) & ALL_ERRORS
        if flags:
            state[S_STATUS], state[S_DETAIL] = FLAGGED, flags
        elif ahead < MODULUS // 2:
            return state[S_STATUS] == FINE
        elif waited > limit:
            state[S_STATUS], state[S_DETAIL] = STUCK, waited
        else:
            ask(args, state, WAIT, pause, 0)
            waited += pause
    return False
