"""Where the latest tokens of a sequence are, and what a convolution makes of them.

States lie as ``state/recurrent.py`` says: ``turns`` has for each sequence the length and the row of
what is committed, and calls write ``row ^ 1``. Kernels whose arguments these functions read have
``positions``, ``sequences``, ``turns``, ``conv``, ``width`` and ``count``.
"""

from __future__ import annotations

from collections.abc import Callable

from numba import float32, njit

from edgerun.kernels.lang.simd import fma, load, reduce_add, splat, store
from edgerun.kernels.lang.vectormath import sigmoid
from edgerun.kernels.lang.word import int_at, set_float, set_word, word
from edgerun.kernels.pointwise.elementwise import copy_floats

LENGTH_BIT = 32  # as in state/recurrent.py
ROW_MASK = (1 << LENGTH_BIT) - 1
TAPS_BYTES = (
    64 * 8
)  # addresses of the most tokens of a convolution, as in ops/recurrent/gated_delta.py


@njit(inline="always")
def begun_row(a, sequence, position):  # type: ignore[no-untyped-def]
    """The row of the state that a call goes on with whose first row has a position."""
    turn = word(a.turns, sequence)
    return (turn & ROW_MASK) ^ (1 if position > turn >> LENGTH_BIT else 0)


@njit(inline="always")
def find_tokens(a, inputs, stride, row, sources):  # type: ignore[no-untyped-def]
    """Sets words to where the latest tokens lie, a row's own last; 0 for those before position 0.

    They are rows of ``inputs``, ``stride`` elements apart, as far as the call has them, and else
    rows of the state.
    """
    position, sequence, last = int_at(a.positions, row), int_at(a.sequences, row), a.count - 1
    here = 0  # rows of the sequence before this one, as far as they matter
    while here < last and here < row and int_at(a.sequences, row - here - 1) == sequence:
        here += 1
    past = a.conv + begun_row(a, sequence, position - here) * last * a.width * 4
    for back in range(a.count):
        if back > position:
            source = 0
        elif back <= here:
            source = inputs + (row - back) * stride * 4
        else:
            source = past + (last + here - back) * a.width * 4
        set_word(sources, last - back, source)


@njit(inline="always")
def keep_tokens(a, inputs, stride, rows, states, unit, units):  # type: ignore[no-untyped-def]
    """Keeps a unit's share of the columns of the latest tokens, zeros before position 0.

    ``rows`` are the first one of a run and the end, ``states`` the row of the state that is read
    and the one that is written. Tokens move towards the front, so these may be the same.
    """
    (first, end), (begun, written) = rows, states
    width, past = a.width, a.count - 1
    begin = width * unit // units
    size = width * (unit + 1) // units - begin
    position = int_at(a.positions, first)
    source = a.conv + (begun * past * width + begin) * 4
    target = a.conv + (written * past * width + begin) * 4
    for place in range(past):
        back = past - place  # 1 for the last token
        row = end - back
        if back > position + end - first:
            for index in range(size):
                set_float(target + place * width * 4, index, float32(0))
        elif row >= first:
            copy_floats(inputs + (row * stride + begin) * 4, target + place * width * 4, size)
        else:
            old = past + row - first
            copy_floats(source + old * width * 4, target + place * width * 4, size)


def convolving(lanes: int) -> Callable[..., None]:
    """The function that convolves columns of the latest tokens.

    A sum over taps has one rounding a tap, beginning with the first.
    """

    @njit(inline="always")
    def convolve(a, sources, out, bias, first, size):  # type: ignore[no-untyped-def]
        """SiLU of the sums of ``size`` columns, at ``out``; returns the sum of their squares.

        ``bias`` is the address of what sums begin with, or 0 for zeros.
        """
        squares = splat(float32(0), "f32", lanes)
        for column in range(first, first + size, lanes):
            total, taps = splat(float32(0), "f32", lanes), a.taps + column * 4
            if bias != 0:
                total = load(bias + column * 4, "f32", lanes)
            for place in range(a.count):
                source = word(sources, place)
                if source != 0:
                    taken = load(source + column * 4, "f32", lanes)
                    total = fma(taken, load(taps + place * a.width * 4, "f32", lanes), total)
            total = total * sigmoid(total)
            squares = fma(total, total, squares)
            store(out + column * 4, total)
        return reduce_add(squares)

    convolution: Callable[..., None] = convolve
    return convolution
