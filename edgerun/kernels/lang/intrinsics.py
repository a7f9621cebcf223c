"""What is no arithmetic: atomics, pauses, prefetch, calls; the system's clock, sleep and pipes."""

from __future__ import annotations

import platform
import sys
from typing import Any

from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic

from edgerun.kernels.lang.ir import I32, I64, VOID, declare, load_from, pointer, prefetch_line
from edgerun.kernels.lang.simd import Vec

WINDOWS = sys.platform == "win32"
_YIELD = "SwitchToThread" if WINDOWS else "sched_yield"
_MONOTONIC = 6 if sys.platform == "darwin" else 1  # CLOCK_MONOTONIC
_DOZE_US, _DOZE_MS = 20, 1
SPINS_BEFORE_YIELD = 1_000


@intrinsic
def atomic_load(typingctx, address):  # type: ignore[no-untyped-def]
    """Reads an aligned int64 with acquire ordering."""

    def codegen(context, builder, sig, args):  # type: ignore[no-untyped-def]
        return builder.load_atomic(pointer(builder, args[0], I64), "acquire", 8)

    return types.int64(types.intp), codegen


@intrinsic
def atomic_store(typingctx, address, value):  # type: ignore[no-untyped-def]
    """Writes an aligned int64 with release ordering."""

    def codegen(context, builder, sig, args):  # type: ignore[no-untyped-def]
        builder.store_atomic(args[1], pointer(builder, args[0], I64), "release", 8)
        return context.get_dummy_value()

    return types.void(types.intp, types.int64), codegen


@intrinsic
def atomic_add(typingctx, address, value):  # type: ignore[no-untyped-def]
    """Adds to an aligned int64; returns the value before."""

    def codegen(context, builder, sig, args):  # type: ignore[no-untyped-def]
        return builder.atomic_rmw("add", pointer(builder, args[0], I64), args[1], "seq_cst")

    return types.int64(types.intp, types.int64), codegen


@intrinsic
def atomic_swap(typingctx, address, value):  # type: ignore[no-untyped-def]
    """Writes an aligned int64 and returns the value before; a full barrier."""

    def codegen(context, builder, sig, args):  # type: ignore[no-untyped-def]
        return builder.atomic_rmw("xchg", pointer(builder, args[0], I64), args[1], "seq_cst")

    return types.int64(types.intp, types.int64), codegen


@intrinsic
def compare_exchange(typingctx, address, expected, desired):  # type: ignore[no-untyped-def]
    """Replaces ``expected`` by ``desired``; true when this call did it."""

    def codegen(context, builder, sig, args):  # type: ignore[no-untyped-def]
        target = pointer(builder, args[0], I64)
        pair = builder.cmpxchg(target, args[1], args[2], "seq_cst", "seq_cst")
        return builder.extract_value(pair, 1)

    return types.boolean(types.intp, types.int64, types.int64), codegen


@intrinsic(prefer_literal=True)
def store_past_caches(typingctx, address, value):  # type: ignore[no-untyped-def]
    """Stores a whole cache line, aligned, that nobody reads soon; then see ``store_fence``."""
    if not isinstance(value, Vec):
        return None

    def codegen(context, builder, sig, args):  # type: ignore[no-untyped-def]
        instruction = builder.store(args[1], builder.inttoptr(args[0], value.llvm.as_pointer()))
        instruction.align = 64
        node = builder.module.add_metadata([ir.Constant(ir.IntType(32), 1)])
        instruction.set_metadata("nontemporal", node)
        return context.get_dummy_value()

    return types.void(types.intp, value), codegen


@intrinsic
def store_fence(typingctx):  # type: ignore[no-untyped-def]
    """Makes what was stored past the caches visible before what is stored from here on."""
    is_x86 = platform.machine().lower() in ("x86_64", "amd64")

    def codegen(context, builder, sig, args):  # type: ignore[no-untyped-def]
        if is_x86:  # where a fence of LLVM's need not concern such stores
            builder.call(declare(builder, "llvm.x86.sse.sfence", VOID), [])
        else:
            builder.fence("seq_cst")
        return context.get_dummy_value()

    return types.void(), codegen


@intrinsic
def call_chunk(typingctx, function, arguments, chunk):  # type: ignore[no-untyped-def]
    """Calls a compiled kernel ``void(intp arguments, intp chunk)`` by its address."""

    def codegen(context, builder, sig, args):  # type: ignore[no-untyped-def]
        kind = ir.FunctionType(VOID, [I64, I64])
        builder.call(pointer(builder, args[0], kind), [args[1], args[2]])
        return context.get_dummy_value()

    return types.void(types.intp, types.intp, types.intp), codegen


@intrinsic
def yield_processor(typingctx):  # type: ignore[no-untyped-def]
    """Lets another thread run on this core."""

    def codegen(context, builder, sig, args):  # type: ignore[no-untyped-def]
        builder.call(declare(builder, _YIELD, I32), [])
        return context.get_dummy_value()

    return types.void(), codegen


@intrinsic
def pause(typingctx):  # type: ignore[no-untyped-def]
    """Tells the processor that this thread spins, where there is an instruction for that."""
    machine = platform.machine().lower()

    def codegen(context, builder, sig, args):  # type: ignore[no-untyped-def]
        if machine in ("x86_64", "amd64"):
            builder.call(declare(builder, "llvm.x86.sse2.pause", VOID), [])
        elif machine in ("aarch64", "arm64"):
            hint = declare(builder, "llvm.aarch64.hint", VOID, I32)
            builder.call(hint, [ir.Constant(I32, 1)])
        return context.get_dummy_value()

    return types.void(), codegen


@njit
def rest(spins: int) -> None:
    """Between two looks at a word; lets other threads run after many of them."""
    if spins > SPINS_BEFORE_YIELD:
        yield_processor()
    else:
        pause()


@intrinsic
def doze(typingctx):  # type: ignore[no-untyped-def]
    """Sleeps for the shortest time that the system offers, some ten microseconds."""

    def codegen(context, builder, sig, args):  # type: ignore[no-untyped-def]
        name, time, result = ("Sleep", _DOZE_MS, VOID) if WINDOWS else ("usleep", _DOZE_US, I32)
        builder.call(declare(builder, name, result, I32), [ir.Constant(I32, time)])
        return context.get_dummy_value()

    return types.void(), codegen


@intrinsic
def nanoseconds(typingctx):  # type: ignore[no-untyped-def]
    """Time since some moment, on a clock that nobody sets."""

    def codegen(context, builder, sig, args):  # type: ignore[no-untyped-def]
        if WINDOWS:
            ticks = builder.call(declare(builder, "GetTickCount64", I64), [])
            return builder.mul(ticks, ir.Constant(I64, 1_000_000))
        with builder.goto_entry_block():
            time = builder.alloca(ir.ArrayType(I64, 2))
        address = builder.ptrtoint(time, I64)
        function = declare(builder, "clock_gettime", I32, I32, I64)
        builder.call(function, [ir.Constant(I32, _MONOTONIC), address])
        seconds = load_from(builder, address, I64)
        rest = load_from(builder, builder.add(address, ir.Constant(I64, 8)), I64)
        return builder.add(builder.mul(seconds, ir.Constant(I64, 1_000_000_000)), rest)

    return types.int64(), codegen


def _pass_byte(builder: Any, descriptor: Any, call: str) -> tuple[Any, Any]:
    """Writes or reads a byte of an open pipe: the byte, 0 at first, and whether it passed."""
    with builder.goto_entry_block():
        byte = builder.alloca(I64)
    builder.store(ir.Constant(I64, 0), byte)
    number = builder.trunc(descriptor, I32)
    name, result, size = (f"_{call}", I32, I32) if WINDOWS else (call, I64, I64)
    function = declare(builder, name, result, I32, I64, size)
    count = builder.call(function, [number, builder.ptrtoint(byte, I64), ir.Constant(size, 1)])
    return builder.load(byte), builder.icmp_signed("==", count, ir.Constant(result, 1))


@intrinsic
def write_byte(typingctx, descriptor):  # type: ignore[no-untyped-def]
    """Writes a byte of anything to an open pipe, if there is room for it."""

    def codegen(context, builder, sig, args):  # type: ignore[no-untyped-def]
        _pass_byte(builder, args[0], "write")
        return context.get_dummy_value()

    return types.void(types.intp), codegen


@intrinsic
def read_byte(typingctx, descriptor):  # type: ignore[no-untyped-def]
    """Waits for a byte of a pipe; -1 where none came, as after a signal."""

    def codegen(context, builder, sig, args):  # type: ignore[no-untyped-def]
        byte, passed = _pass_byte(builder, args[0], "read")
        return builder.select(passed, byte, ir.Constant(I64, -1))

    return types.int64(types.intp), codegen


@intrinsic
def read_piece(typingctx, descriptor, address, size, offset):  # type: ignore[no-untyped-def]
    """Reads bytes at a place of a file, where the system can; how many came, -1 if it failed."""

    def codegen(context, builder, sig, args):  # type: ignore[no-untyped-def]
        if WINDOWS:
            return ir.Constant(I64, -1)
        function = declare(builder, "pread", I64, I32, I64, I64, I64)
        return builder.call(function, [builder.trunc(args[0], I32), *args[1:]])

    return types.int64(types.intp, types.intp, types.intp, types.intp), codegen


def _prefetch(name: str, cache: int) -> Any:
    def ask(typingctx, address):  # type: ignore[no-untyped-def]
        def codegen(context, builder, sig, args):  # type: ignore[no-untyped-def]
            prefetch_line(builder, args[0], cache)
            return context.get_dummy_value()

        return types.void(types.intp), codegen

    ask.__name__ = name
    return intrinsic(ask)


# Ask for the cache line at an address, whatever that is, into the first cache or the second.
prefetch, prefetch_far = _prefetch("prefetch", 1), _prefetch("prefetch_far", 2)
