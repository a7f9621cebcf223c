"""A small portable SIMD language for Numba: vector values, loads, stores and arithmetic.

Numba does not vectorise loops over packed weights, so kernels say what they want with values of
type ``Vec``: a fixed number of lanes that live in registers. Everything lowers to plain LLVM
vector instructions, which LLVM legalises for whatever the machine has; only the integer dot
products of ``dot.py`` know instruction sets. Addresses are plain integers (``intp``), element
types are ``"i8" "u8" "i16" "i32" "i64" "f16" "f32" "f64"``, lanes and types must be compile-time
constants.

    @cfunc("void(intp, intp)")
    def scale(x, count):
        for i in range(0, count, 8):
            v = load(x + 4 * i, "f32", 8)
            store(x + 4 * i, v * splat(float32(2), "f32", 8))
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import (
    intrinsic,
    lower_builtin,
    models,
    register_model,
    type_callable,
)

from edgerun.kernels.lang.ir import declare, load_from, shuffle, store_to

ELEMENTS: dict[str, ir.Type] = {
    "i8": ir.IntType(8),
    "u8": ir.IntType(8),
    "i16": ir.IntType(16),
    "i32": ir.IntType(32),
    "i64": ir.IntType(64),
    "f16": ir.HalfType(),
    "f32": ir.FloatType(),
    "f64": ir.DoubleType(),
}


class Vec(types.Type):  # type: ignore[misc]
    """Numba type of a vector value: ``lanes`` elements of type ``element``."""

    def __init__(self, element: str, lanes: int) -> None:
        self.element = element
        self.lanes = lanes
        super().__init__(name=f"Vec({element} x {lanes})")

    @property
    def llvm(self) -> ir.VectorType:
        """The LLVM type."""
        return ir.VectorType(ELEMENTS[self.element], self.lanes)

    @property
    def is_float(self) -> bool:
        """Whether lanes hold floating-point numbers."""
        return self.element.startswith("f")


@register_model(Vec)
class VecModel(models.PrimitiveModel):  # type: ignore[misc]
    """Stores a vector as itself."""

    def __init__(self, dmm: Any, fe_type: Vec) -> None:
        super().__init__(dmm, fe_type, fe_type.llvm)


def vec_of(element: Any, lanes: Any) -> Vec | None:
    """The vector type that two literal argument types describe, or None while not literal."""
    if isinstance(element, types.StringLiteral) and isinstance(lanes, types.IntegerLiteral):
        return Vec(element.literal_value, lanes.literal_value)
    return None


def constant(vec: Vec, value: float) -> ir.Constant:
    """A vector constant with the same value in every lane."""
    number = float(value) if vec.is_float else int(value)
    return ir.Constant(vec.llvm, [number] * vec.lanes)


@intrinsic(prefer_literal=True)
def load(typingctx, address, element, lanes):  # type: ignore[no-untyped-def]
    """Loads ``lanes`` elements from any byte address; ``"f16"`` arrives as ``"f32"``."""
    vec = vec_of(element, lanes)
    if vec is None:
        return None
    result = Vec("f32", vec.lanes) if vec.element == "f16" else vec

    def codegen(context, builder, sig, args):  # type: ignore[no-untyped-def]
        value = load_from(builder, args[0], vec.llvm)
        return builder.fpext(value, result.llvm) if result != vec else value

    return result(types.intp, element, lanes), codegen


@intrinsic(prefer_literal=True)
def store(typingctx, address, value):  # type: ignore[no-untyped-def]
    """Stores a vector at any byte address."""
    if not isinstance(value, Vec):
        return None

    def codegen(context, builder, sig, args):  # type: ignore[no-untyped-def]
        store_to(builder, args[1], args[0])
        return context.get_dummy_value()

    return types.void(types.intp, value), codegen


@intrinsic(prefer_literal=True)
def store_f16(typingctx, address, value):  # type: ignore[no-untyped-def]
    """Rounds an f32 vector to half precision (nearest even) and stores it."""
    if not isinstance(value, Vec):
        return None
    half = Vec("f16", value.lanes)

    def codegen(context, builder, sig, args):  # type: ignore[no-untyped-def]
        store_to(builder, builder.fptrunc(args[1], half.llvm), args[0])
        return context.get_dummy_value()

    return types.void(types.intp, value), codegen


def broadcast(builder: ir.IRBuilder, scalar: ir.Value, vec: Vec) -> ir.Value:
    """Copies an LLVM scalar into every lane."""
    undefined = ir.Constant(vec.llvm, ir.Undefined)
    zero = ir.Constant(ir.IntType(32), 0)
    first = builder.insert_element(undefined, scalar, zero)
    return shuffle(builder, first, undefined, [0] * vec.lanes)


@intrinsic(prefer_literal=True)
def splat(typingctx, scalar, element, lanes):  # type: ignore[no-untyped-def]
    """Copies a scalar into every lane, converting it to the element type."""
    vec = vec_of(element, lanes)
    if vec is None:
        return None
    scalars = {"f32": types.float32, "i32": types.int32, "i16": types.int16, "i64": types.int64}
    kind = scalars.get(vec.element, types.int8)

    def codegen(context, builder, sig, args):  # type: ignore[no-untyped-def]
        return broadcast(builder, args[0], vec)

    return vec(kind, element, lanes), codegen


@intrinsic(prefer_literal=True)
def load_splat(typingctx, address, lanes):  # type: ignore[no-untyped-def]
    """Loads one float32 and copies it into every lane."""
    if not isinstance(lanes, types.IntegerLiteral):
        return None
    vec = Vec("f32", lanes.literal_value)

    def codegen(context, builder, sig, args):  # type: ignore[no-untyped-def]
        return broadcast(builder, load_from(builder, args[0], ir.FloatType()), vec)

    return vec(types.intp, lanes), codegen


def _binary(symbol: Any, on_float: str, on_int: str) -> None:
    @type_callable(symbol)
    def typing(context: Any) -> Callable[[Any, Any], Vec | None]:
        def typer(a: Any, b: Any) -> Vec | None:
            return a if isinstance(a, Vec) and a == b else None

        return typer

    @lower_builtin(symbol, Vec, Vec)
    def lower(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        name = on_float if sig.args[0].is_float else on_int
        return getattr(builder, name)(args[0], args[1])


_binary(operator.add, "fadd", "add")
_binary(operator.sub, "fsub", "sub")
_binary(operator.mul, "fmul", "mul")
_binary(operator.truediv, "fdiv", "sdiv")
_binary(operator.and_, "", "and_")
_binary(operator.or_, "", "or_")
_binary(operator.xor, "", "xor")


@intrinsic(prefer_literal=True)
def shift_right(typingctx, value, bits):  # type: ignore[no-untyped-def]
    """Logical shift of every lane to the right by a constant."""
    if not isinstance(value, Vec) or not isinstance(bits, types.IntegerLiteral):
        return None

    def codegen(context, builder, sig, args):  # type: ignore[no-untyped-def]
        return builder.lshr(args[0], constant(value, bits.literal_value))

    return value(value, bits), codegen


@intrinsic(prefer_literal=True)
def shift_left(typingctx, value, bits):  # type: ignore[no-untyped-def]
    """Shift of every lane to the left by a constant."""
    if not isinstance(value, Vec) or not isinstance(bits, types.IntegerLiteral):
        return None

    def codegen(context, builder, sig, args):  # type: ignore[no-untyped-def]
        return builder.shl(args[0], constant(value, bits.literal_value))

    return value(value, bits), codegen


@intrinsic
def shift_by(typingctx, value, bits):  # type: ignore[no-untyped-def]
    """Logical shift of every lane to the right by a scalar below its bits."""
    if not isinstance(value, Vec):
        return None

    def codegen(context, builder, sig, args):  # type: ignore[no-untyped-def]
        amount = builder.trunc(args[1], ELEMENTS[value.element])
        return builder.lshr(args[0], broadcast(builder, amount, value))

    return value(value, types.int64), codegen


@intrinsic(prefer_literal=True)
def lane(typingctx, value, index):  # type: ignore[no-untyped-def]
    """Reads one lane of a float vector."""
    if not isinstance(value, Vec):
        return None

    def codegen(context, builder, sig, args):  # type: ignore[no-untyped-def]
        return builder.extract_element(args[0], builder.trunc(args[1], ir.IntType(32)))

    return types.float32(value, types.int64), codegen


@intrinsic(prefer_literal=True)
def mask_bits(typingctx, value, mask):  # type: ignore[no-untyped-def]
    """Bitwise AND of every lane with a constant."""
    if not isinstance(value, Vec) or not isinstance(mask, types.IntegerLiteral):
        return None

    def codegen(context, builder, sig, args):  # type: ignore[no-untyped-def]
        return builder.and_(args[0], constant(value, mask.literal_value))

    return value(value, mask), codegen


def _conversion(builder: Any, value: Any, source: Vec, target: Vec) -> Any:
    if source.is_float and not target.is_float:
        return builder.fptosi(value, target.llvm)
    if source == Vec("f32", source.lanes) and target.element == "f64":
        return builder.fpext(value, target.llvm)
    if target.is_float:
        convert = builder.uitofp if source.element == "u8" else builder.sitofp
        return convert(value, target.llvm)
    if ELEMENTS[target.element].width < ELEMENTS[source.element].width:
        return builder.trunc(value, target.llvm)
    extend = builder.zext if source.element == "u8" else builder.sext
    return extend(value, target.llvm)


@intrinsic(prefer_literal=True)
def cast(typingctx, value, element):  # type: ignore[no-untyped-def]
    """Converts lanes to another element type; float to integer truncates towards zero."""
    if not isinstance(value, Vec) or not isinstance(element, types.StringLiteral):
        return None
    target = Vec(element.literal_value, value.lanes)

    def codegen(context, builder, sig, args):  # type: ignore[no-untyped-def]
        return _conversion(builder, args[0], value, target)

    return target(value, element), codegen


@intrinsic(prefer_literal=True)
def reinterpret(typingctx, value, element):  # type: ignore[no-untyped-def]
    """Reads the same bits as lanes of another element type."""
    if not isinstance(value, Vec) or not isinstance(element, types.StringLiteral):
        return None
    width = {"f32": 32, "f16": 16}
    bits = width.get(value.element) or ELEMENTS[value.element].width
    target_bits = width.get(element.literal_value) or ELEMENTS[element.literal_value].width
    target = Vec(element.literal_value, value.lanes * bits // target_bits)

    def codegen(context, builder, sig, args):  # type: ignore[no-untyped-def]
        return builder.bitcast(args[0], target.llvm)

    return target(value, element), codegen


def _suffix(vec: Vec) -> str:
    kind = vec.element if vec.is_float else f"i{ELEMENTS[vec.element].width}"
    return f"v{vec.lanes}{kind}"


def _pure(name: str, arity: int, float_name: str, int_name: str = "") -> Any:
    """Makes an intrinsic over equal vectors from LLVM's overloaded function of that name."""

    def build(vec: Any, sig_args: tuple[Any, ...]) -> Any:
        def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
            base = float_name if vec.is_float else int_name
            extra = []
            if base == "abs":
                extra = [ir.Constant(ir.IntType(1), 0)]
            kinds = [vec.llvm] * arity + [value.type for value in extra]
            function = declare(builder, f"llvm.{base}.{_suffix(vec)}", vec.llvm, *kinds)
            return builder.call(function, list(args) + extra)

        return vec(*sig_args), codegen

    def unary(typingctx, a):  # type: ignore[no-untyped-def]
        return build(a, (a,)) if isinstance(a, Vec) else None

    def binary(typingctx, a, b):  # type: ignore[no-untyped-def]
        return build(a, (a, b)) if isinstance(a, Vec) and a == b else None

    def ternary(typingctx, a, b, c):  # type: ignore[no-untyped-def]
        return build(a, (a, b, c)) if isinstance(a, Vec) and a == b == c else None

    function = (unary, binary, ternary)[arity - 1]
    function.__name__ = name
    return intrinsic(function)


fma = _pure("fma", 3, "fmuladd")
round_even = _pure("round_even", 1, "rint")
floor = _pure("floor", 1, "floor")
absolute = _pure("absolute", 1, "fabs", "abs")


def _choice(name: str, order: str, int_name: str) -> Any:
    """Makes an intrinsic that takes one of two equal vectors' elements."""

    def choose(typingctx, a, b):  # type: ignore[no-untyped-def]
        if not isinstance(a, Vec) or a != b:
            return None

        def codegen(context, builder, sig, args):  # type: ignore[no-untyped-def]
            if not a.is_float:
                function = declare(builder, f"llvm.{int_name}.{_suffix(a)}", *[a.llvm] * 3)
                return builder.call(function, args)
            first, second = args
            return builder.select(builder.fcmp_ordered(order, first, second), second, first)

        return a(a, b), codegen

    choose.__name__ = name
    return intrinsic(choose)


# One instruction of x86, which LLVM's maxnum is not. A float of ``a`` that is no number stays, so
# that clamping hides none; one of ``b`` is passed over.
maximum = _choice("maximum", "<", "smax")
minimum = _choice("minimum", ">", "smin")


def _highest(builder: Any, value: Any, lanes: int) -> Any:
    """The largest of some floats, half by half: LLVM's reduction takes one after the other."""
    while lanes > 1:
        lanes //= 2
        kind = ir.VectorType(ir.IntType(32), lanes)
        halves = [
            builder.shuffle_vector(value, value, ir.Constant(kind, list(places)))
            for places in (range(lanes), range(lanes, 2 * lanes))
        ]
        half = Vec("f32", lanes).llvm
        value = builder.call(declare(builder, f"llvm.maxnum.v{lanes}f32", half, half, half), halves)
    return builder.extract_element(value, ir.Constant(ir.IntType(32), 0))


def _reduction(name: str, float_name: str, int_name: str, start: float | None) -> Any:
    def reduce(typingctx, value):  # type: ignore[no-untyped-def]
        if not isinstance(value, Vec):
            return None
        scalar = types.float32 if value.is_float else types.int32
        kind = ELEMENTS[value.element]

        def codegen(context, builder, sig, args):  # type: ignore[no-untyped-def]
            if float_name == "fmax" and value.is_float:
                return _highest(builder, args[0], value.lanes)
            base = f"llvm.vector.reduce.{float_name if value.is_float else int_name}"
            name = f"{base}.{_suffix(value)}"
            if value.is_float and start is not None:
                function = declare(builder, name, kind, kind, value.llvm)
                call = builder.call(function, [ir.Constant(kind, start), args[0]])
                call.fastmath.add("reassoc")
                return call
            return builder.call(declare(builder, name, kind, value.llvm), [args[0]])

        return scalar(value), codegen

    reduce.__name__ = name
    return intrinsic(reduce)


reduce_add = _reduction("reduce_add", "fadd", "add", 0.0)
reduce_max = _reduction("reduce_max", "fmax", "smax", None)
