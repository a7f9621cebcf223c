"""Some columns of a head's matrix, carried through the tokens of a sequence.

Kernels that do so have arguments ``mixed`` and ``gates``, what the matrix is changed and read by,
``result``, and ``matrix``, ``turns``, ``positions`` and ``sequences`` of the state.
"""

from __future__ import annotations

from collections.abc import Callable

from numba import float32, njit

from edgerun.kernels.lang.simd import splat, store
from edgerun.kernels.lang.tiles import scratch
from edgerun.kernels.lang.word import float_at, int_at, word
from edgerun.kernels.recurrent.passes import add_products, change, change_and_add
from edgerun.kernels.recurrent.tokens import ROW_MASK, begun_row


@njit(inline="always")
def states_of(a, first):  # type: ignore[no-untyped-def]
    """The row of the state that a run whose first row it is reads, and the one that it writes."""
    sequence = int_at(a.sequences, first)
    begun = begun_row(a, sequence, int_at(a.positions, first))
    return begun, (word(a.turns, sequence) & ROW_MASK) ^ 1


def carrying(
    respond: Callable[..., None],
    readers: Callable[..., object],
    count: int,
    sizes: tuple[int, int, int],
) -> Callable[..., None]:
    """The function that lets tokens change some columns, one after the other.

    Args:
        respond: makes the change and the result of a token of the products of what it reads by:
            of the kernel's arguments, gates, head, values, products, change and result.
        readers: addresses that a token reads by, of its row and the places of key and query.
        count: how many they are.
        sizes: whether what single rows make goes past caches, vectors of a unit and lanes.
    """
    past_caches, vectors, lanes = sizes
    row_bytes, sums_bytes = vectors * lanes * 4, count * vectors * lanes * 4

    @njit(inline="always")
    def carry(a, run, head, column, shape, places):  # type: ignore[no-untyped-def]
        """Takes the rows of a run through columns from ``column`` on.

        ``shape`` are heads, rows and columns of their matrices, ``places`` where in a row of
        ``mixed`` the head's key, query and values begin.
        """
        (first, end), (heads, rows, width) = run, shape
        key, query, value = places[0] * 4, places[1] * 4, (places[2] + column) * 4
        sums, step, stride = scratch(sums_bytes), scratch(row_bytes), width * 4
        begun, written = states_of(a, first)
        place = a.matrix + (head * rows * width + column) * 4
        source = place + begun * heads * rows * stride
        target = place + written * heads * rows * stride
        if int_at(a.positions, first) == 0:
            source = target
            clear(target, rows, stride, row_bytes, lanes)
        gates, mixed = a.gates + first * a.gates_stride * 4, a.mixed + first * a.mixed_stride * 4
        result = a.result + (first * a.result_stride + head * width + column) * 4
        add_products(source, stride, rows, readers(mixed, key, query), sums, vectors, lanes)
        for row in range(first, end):
            respond(a, gates, head, mixed + value, sums, step, result)
            token = (mixed + key, step, float_at(gates, head))
            gates += a.gates_stride * 4
            mixed += a.mixed_stride * 4
            result += a.result_stride * 4
            if row + 1 < end:
                new = readers(mixed, key, query)
                change_and_add(source, target, stride, rows, token, new, sums, vectors, lanes)
            elif past_caches and row == first:
                change(source, target, stride, rows, token, 1, vectors, lanes)
            else:
                change(source, target, stride, rows, token, 0, vectors, lanes)
            source = target

    carrier: Callable[..., None] = carry
    return carrier


@njit(inline="always")
def clear(target, rows, stride, nbytes, lanes):  # type: ignore[no-untyped-def]
    """Fills parts of rows with zeros."""
    for row in range(rows):
        for index in range(0, nbytes, lanes * 4):
            store(target + row * stride + index, splat(float32(0), "f32", lanes))
