"""What activation functions are written with, for kernels of a GPU.

The names are those of ``kernels/lang/vectormath.py``, the values single float32 instead of vectors
of them, and every bit is the same: both do the same operations in the same order.
"""

from __future__ import annotations

from typing import Any

from numba import cuda, float32, int32

from edgerun.offload.cuda.arithmetic import add, float_of_bits, fma, multiply, round_even


def _inlined(function: Any) -> Any:
    """Numba would ask for a GPU to compile a function that is not inlined."""
    return cuda.jit(device=True, inline="always")(function)


@_inlined
def number(x, value):  # type: ignore[no-untyped-def]
    """A float32; ``x`` says of which kind elsewhere."""
    return float32(value)


@_inlined
def minimum(a, b):  # type: ignore[no-untyped-def]
    """The smaller one; ``a`` if one is no number."""
    return b if a > b else a


@_inlined
def maximum(a, b):  # type: ignore[no-untyped-def]
    """The larger one; ``a`` if one is no number."""
    return b if a < b else a


@_inlined
def exp(x):  # type: ignore[no-untyped-def]
    """``e ** x``; as ``kernels/lang/vectormath.py`` has it, to the bit."""
    x = minimum(maximum(x, float32(-87.3)), float32(88.3))
    n = round_even(multiply(x, float32(1.44269504)))
    r = fma(n, float32(-0.693359375), x)
    r = fma(n, float32(2.12194440e-4), r)
    p = fma(float32(1.9875691500e-4), r, float32(1.3981999507e-3))
    p = fma(p, r, float32(8.3334519073e-3))
    p = fma(p, r, float32(4.1665795894e-2))
    p = fma(p, r, float32(1.6666665459e-1))
    p = fma(p, r, float32(5.0000001201e-1))
    p = add(fma(p, multiply(r, r), r), float32(1))
    return multiply(p, float_of_bits((int32(n) + int32(127)) << int32(23)))
