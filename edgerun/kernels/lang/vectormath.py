"""Vector functions that no machine has an instruction for."""

from __future__ import annotations

from math import log

from llvmlite import ir
from numba import float32, int32, njit, types
from numba.extending import intrinsic

from edgerun.kernels.lang.ir import I32
from edgerun.kernels.lang.simd import (
    Vec,
    broadcast,
    cast,
    fma,
    maximum,
    minimum,
    reinterpret,
    round_even,
    shift_left,
)


@intrinsic
def like(typingctx, value, scalar):  # type: ignore[no-untyped-def]
    """Copies a float32 or int32 into every lane of a vector shaped like ``value``."""
    if not isinstance(value, Vec):
        return None
    kind = types.float32 if value.is_float else types.int32

    def codegen(context, builder, sig, args):  # type: ignore[no-untyped-def]
        return broadcast(builder, args[1], value)

    return value(value, kind), codegen


@intrinsic
def within(typingctx, value, other, first, last):  # type: ignore[no-untyped-def]
    """Lanes ``first .. last - 1`` of a vector, and those of ``other`` elsewhere."""
    if not isinstance(value, Vec) or value != other:
        return None

    def codegen(context, builder, sig, args):  # type: ignore[no-untyped-def]
        lanes = Vec("i32", value.lanes)
        place = ir.Constant(lanes.llvm, list(range(value.lanes)))
        begin, end = (broadcast(builder, builder.trunc(bound, I32), lanes) for bound in args[2:])
        seen = builder.and_(
            builder.icmp_signed(">=", place, begin), builder.icmp_signed("<", place, end)
        )
        return builder.select(seen, args[0], args[1])

    return value(value, other, types.int64, types.int64), codegen


@intrinsic
def between(typingctx, value, other, first, end, index):  # type: ignore[no-untyped-def]
    """Lanes whose bounds, int32 vectors, have a number between them; elsewhere ``other``."""
    if not isinstance(value, Vec) or value != other:
        return None

    def codegen(context, builder, sig, args):  # type: ignore[no-untyped-def]
        place = broadcast(builder, builder.trunc(args[4], I32), Vec("i32", value.lanes))
        begun = builder.icmp_signed("<=", args[2], place)
        seen = builder.and_(begun, builder.icmp_signed("<", place, args[3]))
        return builder.select(seen, args[0], args[1])

    return value(value, other, first, end, types.int64), codegen


@njit
def number(x, value):  # type: ignore[no-untyped-def]
    """A float32 in every lane of a vector shaped like ``x``."""
    return like(x, float32(value))


@njit
def exp(x):  # type: ignore[no-untyped-def]
    """``e ** x`` of a float32 vector; x is clamped to [-87.3, 88.3], and NaN stays NaN.

    Relative error below 2e-7. Source: Cephes ``expf`` (Moshier 1989): x = n ln 2 + r, a
    polynomial for e ** r, and n added to the exponent bits.
    """
    x = minimum(maximum(x, like(x, float32(-87.3))), like(x, float32(88.3)))
    n = round_even(x * like(x, float32(1.44269504)))
    r = fma(n, like(x, float32(-0.693359375)), x)
    r = fma(n, like(x, float32(2.12194440e-4)), r)
    p = fma(like(x, float32(1.9875691500e-4)), r, like(x, float32(1.3981999507e-3)))
    p = fma(p, r, like(x, float32(8.3334519073e-3)))
    p = fma(p, r, like(x, float32(4.1665795894e-2)))
    p = fma(p, r, like(x, float32(1.6666665459e-1)))
    p = fma(p, r, like(x, float32(5.0000001201e-1)))
    p = fma(p, r * r, r) + like(x, float32(1))
    whole = cast(n, "i32")
    return p * reinterpret(shift_left(whole + like(whole, int32(127)), 23), "f32")


@njit
def tanh(x):  # type: ignore[no-untyped-def]
    """Hyperbolic tangent of a float32 vector; NaN stays NaN.

    Relative error below 6e-7: near 0 the power series up to the ninth power, whose error is below
    1e-8 there, elsewhere ``1 - 2 / (e ** 2x + 1)``; which of them is a factor of 0 or 1.
    """
    zero, unit = number(x, 0), number(x, 1)
    size = maximum(x, zero - x)
    near = minimum(size, number(x, 0.25))
    square = near * near
    series = number(x, 62 / 2835) * square - number(x, 17 / 315)
    series = (series * square + number(x, 2 / 15)) * square - number(x, 1 / 3)
    series = near + near * square * series
    far = minimum(size, number(x, 10))  # from where on it is 1
    power = unit - number(x, 2) / (exp(far + far) + unit)
    is_far = minimum(maximum((size - number(x, 0.25)) * number(x, 1e30), zero), unit)
    result = series + is_far * (power - series)
    sign = minimum(maximum(x * number(x, 1e38), zero - unit), unit)
    return result * sign


@njit
def sigmoid(x):  # type: ignore[no-untyped-def]
    """``1 / (1 + e ** -x)`` of a float32 vector; NaN stays NaN. Relative error below 4e-7."""
    unit = number(x, 1)
    bounded = maximum(x, number(x, -80))  # the exponential stays finite
    return unit / (unit + exp(number(x, 0) - bounded))


@njit
def erfc(x):  # type: ignore[no-untyped-def]
    """``2 / sqrt(pi)`` times the integral of ``e ** -t ** 2`` from x on; NaN stays NaN.

    For ``z = |x|`` up to 10, from where on it is 0 or 2, it is ``t * e ** (p(t) - z ** 2)`` with
    ``t = 2 / (2 + z)``: the form of Press et al. 1992, section 6.2, with a polynomial of ours,
    interpolated in Chebyshev points, that is off by 5e-8. Relative error below 4e-7 up to 1, and
    beyond it below 1e-7 of 1.
    """
    zero, unit = number(x, 0), number(x, 1)
    size = minimum(maximum(x, zero - x), number(x, 10))
    t = number(x, 2) / (number(x, 2) + size)
    place = fma(t, number(x, 2.4), number(x, -1.4))
    series = fma(number(x, 5.48602468e-05), place, number(x, 7.27287901e-05))
    series = fma(series, place, number(x, -0.00053432061))
    series = fma(series, place, number(x, -0.000225964162))
    series = fma(series, place, number(x, 0.00370747674))
    series = fma(series, place, number(x, -0.00106340791))
    series = fma(series, place, number(x, -0.0294703369))
    series = fma(series, place, number(x, 0.0157473061))
    series = fma(series, place, number(x, 0.570307103))
    series = fma(series, place, number(x, -0.558595398))
    tail = t * exp(fma(zero - size, size, series))
    is_below = minimum(maximum(x * number(x, -1e38), zero), unit)
    return tail + is_below * (number(x, 2) - tail - tail)


@njit
def softplus(x):  # type: ignore[no-untyped-def]
    """``log(1 + e ** x)`` of a float32 vector; NaN stays NaN. Relative error below 5e-7.

    It is the larger of x and 0, plus ``log(1 + y)`` with ``y = e ** -|x|``. That is twice the area
    tangent of ``s = y / (2 + y)``, at most 1/3, whose power series ends at the 17th power.
    """
    zero, unit = number(x, 0), number(x, 1)
    y = exp(zero - maximum(x, zero - x))
    s = y / (y + number(x, 2))
    square = s * s
    series = fma(square, number(x, 1 / 17), number(x, 1 / 15))
    series = fma(series, square, number(x, 1 / 13))
    series = fma(series, square, number(x, 1 / 11))
    series = fma(series, square, number(x, 1 / 9))
    series = fma(series, square, number(x, 1 / 7))
    series = fma(series, square, number(x, 1 / 5))
    series = fma(series, square, number(x, 1 / 3))
    series = fma(series, square, unit)
    return fma(s + s, series, maximum(x, zero))


@njit
def exp_bend(x):  # type: ignore[no-untyped-def]
    """``e ** x - 1 - x`` of a float32 vector of numbers up to 0; NaN stays NaN.

    Relative error below 6e-7: near 0 the power series up to the ninth power, whose error is below
    1e-7 of it there; which of them is a factor of 0 or 1.
    """
    zero, unit = number(x, 0), number(x, 1)
    near = maximum(x, number(x, -0.75))
    series = fma(near, number(x, 1 / 362880), number(x, 1 / 40320))
    series = fma(series, near, number(x, 1 / 5040))
    series = fma(series, near, number(x, 1 / 720))
    series = fma(series, near, number(x, 1 / 120))
    series = fma(series, near, number(x, 1 / 24))
    series = fma(series, near, number(x, 1 / 6))
    series = fma(series, near, number(x, 0.5)) * near * near
    is_far = minimum(maximum((number(x, -0.75) - x) * number(x, 1e30), zero), unit)
    return series + is_far * (exp(x) - unit - x - series)


@njit
def exp2_roughly(x):  # type: ignore[no-untyped-def]
    """``2 ** x`` of a float32 vector up to 127, to 8e-5; x is raised to -126, and NaN stays NaN.

    x = n + f with f from -1/2 to 1/2, and a polynomial for ``2 ** f`` whose largest relative error
    is the least that degree 3 can have.
    """
    x = maximum(x, like(x, float32(-126)))
    n = round_even(x)
    f = x - n
    p = fma(like(x, float32(0.05517164617776871)), f, like(x, float32(0.2426111251115799)))
    p = fma(p, f, like(x, float32(0.6932609677314758)))
    p = fma(p, f, like(x, float32(0.9999280571937561)))
    whole = cast(n, "i32")
    return p * reinterpret(shift_left(whole + like(whole, int32(127)), 23), "f32")


@njit
def tanh_roughly(x):  # type: ignore[no-untyped-def]
    """Hyperbolic tangent of a float32 vector to 4e-5, near 0 too; NaN stays NaN."""
    unit = number(x, 1)
    power = exp2_roughly(minimum(x * number(x, 2 / log(2)), number(x, 126)))
    return unit - number(x, 2) / (power + unit)
