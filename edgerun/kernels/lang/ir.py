"""What code that builds LLVM IR needs everywhere: constants, addresses, loads, variables."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from llvmlite import ir
from numba.core import cgutils

I8, I32, I64, F32, VOID = (
    ir.IntType(8),
    ir.IntType(32),
    ir.IntType(64),
    ir.FloatType(),
    ir.VoidType(),
)


def literals(*kinds: Any) -> list[Any] | None:
    """Values of compile-time constants, or None while Numba has not made all of them literal."""
    values = [getattr(kind, "literal_value", None) for kind in kinds]
    return None if None in values else values


def integer(value: int) -> Any:
    """A constant of the type that addresses have."""
    return ir.Constant(I64, value)


def at_most(builder: Any, value: Any, limit: Any) -> Any:
    """The smaller of two integers."""
    return builder.select(builder.icmp_signed("<", value, limit), value, limit)


def offset(builder: Any, address: Any, size: int) -> Any:
    """An address some bytes further on."""
    return builder.add(address, integer(size)) if size else address


def pointer(builder: Any, address: Any, kind: Any) -> Any:
    """Turns an integer address into a pointer to ``kind``."""
    return builder.inttoptr(address, kind.as_pointer())


def declare(builder: Any, name: str, result: Any, *args: Any) -> Any:
    """Declares an LLVM intrinsic or a C function by name."""
    return cgutils.get_or_insert_function(builder.module, ir.FunctionType(result, args), name)


def fused(builder: Any, a: Any, b: Any, c: Any) -> Any:
    """``a * b + c`` of float32 vectors."""
    function = declare(builder, f"llvm.fmuladd.v{a.type.count}f32", a.type, *[a.type] * 3)
    return builder.call(function, [a, b, c])


def load_from(builder: Any, address: Any, kind: Any) -> Any:
    """Loads a value of an LLVM type from any address."""
    value = builder.load(pointer(builder, address, kind))
    value.align = 1
    return value


def store_to(builder: Any, value: Any, address: Any) -> None:
    """Stores a value at any address."""
    builder.store(value, pointer(builder, address, value.type)).align = 1


def variable(builder: Any, value: Any) -> Any:
    """A variable of the function with a first value; the optimiser keeps it in a register."""
    with builder.goto_entry_block():
        place = builder.alloca(value.type)
    builder.store(value, place)
    return place


def opaque(builder: Any, value: Any) -> Any:
    """An integer of the machine's width, of which the optimiser knows nothing."""
    hide = ir.InlineAsm(ir.FunctionType(value.type, [value.type]), "", "=r,0")
    return builder.call(hide, [value])


def shuffle(builder: Any, left: Any, right: Any, places: Sequence[int]) -> Any:
    """Chooses elements of two vectors, those of ``right`` counted from the length of ``left``."""
    mask = ir.Constant(ir.VectorType(I32, len(places)), list(places))
    return builder.shuffle_vector(left, right, mask)


def prefetch_line(builder: Any, address: Any, cache: int = 1) -> None:
    """Asks for the cache line of an address, which need not be valid, into a core's first cache.

    ``cache`` is 2 for the second one.
    """
    kind = I8.as_pointer()
    function = declare(builder, "llvm.prefetch.p0", VOID, kind, I32, I32, I32)
    flags = [ir.Constant(I32, value) for value in (0, 4 - cache, 1)]  # to read, to keep, data
    builder.call(function, [builder.inttoptr(address, kind), *flags])
