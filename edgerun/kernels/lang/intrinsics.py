"""The few machine instructions that are no arithmetic: atomics, pauses, prefetch, calls."""

from __future__ import annotations

import platform
import sys

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from edgerun.kernels.lang.ir import I32, I64, VOID, declare, pointer, prefetch_line

_YIELD = "SwitchToThread" if sys.platform == "win32" else "sched_yield"


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


@intrinsic
def prefetch(typingctx, address):  # type: ignore[no-untyped-def]
    """Asks for the cache line at an address; any address is allowed."""

    def codegen(context, builder, sig, args):  # type: ignore[no-untyped-def]
        prefetch_line(builder, args[0])
        return context.get_dummy_value()

    return types.void(types.intp), codegen
