"""The mixing of layers of linear attention: ``ops/recurrent/gated_delta.py`` has the formulas.

One kernel makes queries, keys, values and gates of all rows. Another takes a sequence's rows in
order, for some columns of a head's matrix at a time. What a row gets is the same by a bit whatever
rows are in the call beside it.

States lie as ``state/recurrent.py`` says: ``turns`` has for each sequence the length and the row of
what is committed, and calls write ``row ^ 1``. Buffers are float32 ``[rows, stride]``; ``lanes``,
the number of float32 in a vector, divides ``key_dim`` and ``value_dim``.
"""

from __future__ import annotations

from collections.abc import Callable
from math import sqrt

from numba import float32, njit

from edgerun.kernels.jit.declare import Arguments, Body, kernel
from edgerun.kernels.lang.simd import fma, lane, load, load_splat, reduce_add, splat, store
from edgerun.kernels.lang.tiles import scratch
from edgerun.kernels.lang.vectormath import exp, sigmoid, softplus
from edgerun.kernels.lang.word import float_at, int_at, set_float, set_int, set_word, word
from edgerun.kernels.pointwise.elementwise import copy_floats
from edgerun.kernels.recurrent.passes import add_products, change, change_and_add

LENGTH_BIT = 32  # as in state/recurrent.py
ROW_MASK = (1 << LENGTH_BIT) - 1
TAPS_BYTES = (
    64 * 8
)  # addresses of the most tokens of a convolution, as in ops/recurrent/gated_delta.py
_SIZES = "width count key_heads value_heads key_dim value_dim"
_BATCH = "rows:i64[1] positions:i32[rows] sequences:i32[rows]"
_MADE = (
    "mixed:f32[rows, width; mixed_stride] mixed_stride"
    " gates:f32[rows, 3 * value_heads; gates_stride] gates_stride"
)


@njit(inline="always")
def begun_row(a, sequence, position):  # type: ignore[no-untyped-def]
    """The row of the state that a call goes on with whose first row has a position."""
    turn = word(a.turns, sequence)
    return (turn & ROW_MASK) ^ (1 if position > turn >> LENGTH_BIT else 0)


@kernel(
    "delta_inputs",
    f"{_BATCH} qkv:f32[rows, width; qkv_stride] qkv_stride"
    " decay:f32[rows, value_heads; decay_stride] decay_stride"
    " write:f32[rows, value_heads; write_stride] write_stride taps:f32[count, width]"
    f" rate:f32[value_heads] offset:f32[value_heads] epsilon:f32[1] {_MADE} {_SIZES}"
    " conv:cache turns:cache",
)
def delta_inputs(lanes: int) -> Body:
    """Makes queries, keys and values of a convolution, and gates; chunk = row * key_heads + head.

    ``mixed`` are queries and keys, divided by their lengths, and values, in the order of ``qkv``;
    ``gates`` of each value head what its matrix is multiplied by, how much of a change is made, and
    the product of key and query. A sum over taps has one rounding a tap, beginning with the first;
    relative error of an element below 2e-6 in practice.
    """

    @njit(inline="always")
    def convolve(a, sources, row, first, size):  # type: ignore[no-untyped-def]
        """SiLU of the sums of ``size`` columns; returns the sum of their squares."""
        out, squares = a.mixed + row * a.mixed_stride * 4, splat(float32(0), "f32", lanes)
        for column in range(first, first + size, lanes):
            total, taps = splat(float32(0), "f32", lanes), a.taps + column * 4
            for place in range(a.count):
                source = word(sources, place)
                if source != 0:
                    taken = load(source + column * 4, "f32", lanes)
                    total = fma(taken, load(taps + place * a.width * 4, "f32", lanes), total)
            total = total * sigmoid(total)
            squares = fma(total, total, squares)
            store(out + column * 4, total)
        return reduce_add(squares)

    @njit(inline="always")
    def scale(a, row, first, size, factor):  # type: ignore[no-untyped-def]
        address, factors = a.mixed + (row * a.mixed_stride + first) * 4, splat(factor, "f32", lanes)
        for index in range(0, size * 4, lanes * 4):
            store(address + index, load(address + index, "f32", lanes) * factors)

    def body(a: Arguments, chunk: int) -> None:
        row, head = chunk // a.key_heads, chunk % a.key_heads
        sources, key_dim = scratch(TAPS_BYTES), a.key_dim
        find_tokens(a, row, sources)
        query, key = head * key_dim, (a.key_heads + head) * key_dim
        epsilon = float_at(a.epsilon, 0)
        length = float32(sqrt(convolve(a, sources, row, query, key_dim) + epsilon))
        scale(a, row, query, key_dim, float32(1) / (length * float32(sqrt(float32(key_dim)))))
        length = float32(sqrt(convolve(a, sources, row, key, key_dim) + epsilon))
        scale(a, row, key, key_dim, float32(1) / length)
        shared = a.value_heads // a.key_heads
        value = 2 * a.key_heads * key_dim + head * shared * a.value_dim
        convolve(a, sources, row, value, shared * a.value_dim)
        mixed, product = a.mixed + row * a.mixed_stride * 4, splat(float32(0), "f32", lanes)
        for index in range(0, key_dim, lanes):
            left = load(mixed + (query + index) * 4, "f32", lanes)
            product = fma(left, load(mixed + (key + index) * 4, "f32", lanes), product)
        set_gates(a, row, head * shared, (head + 1) * shared, reduce_add(product))

    return body


@njit(inline="always")
def find_tokens(a, row, sources):  # type: ignore[no-untyped-def]
    """Sets words to where the latest tokens lie, a row's own last; 0 for those before position 0.

    They are rows of the call as far as it has them, and else rows of the state.
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
            source = a.qkv + (row - back) * a.qkv_stride * 4
        else:
            source = past + (last + here - back) * a.width * 4
        set_word(sources, last - back, source)


@njit(inline="always")
def set_gates(a, row, first, end, product):  # type: ignore[no-untyped-def]
    """Sets the three numbers of some value heads."""
    gates, heads = a.gates + row * a.gates_stride * 4, a.value_heads
    decay, write = a.decay + row * a.decay_stride * 4, a.write + row * a.write_stride * 4
    for head in range(first, end):
        raw = load_splat(decay + head * 4, 1) + load_splat(a.offset + head * 4, 1)
        forget = exp(load_splat(a.rate + head * 4, 1) * softplus(raw))
        set_float(gates, head, lane(forget, 0))
        set_float(gates, heads + head, lane(sigmoid(load_splat(write + head * 4, 1)), 0))
        set_float(gates, 2 * heads + head, product)


@kernel(
    "delta_update",
    f"{_BATCH} runs:i32[rows + 1] qkv:f32[rows, width; qkv_stride] qkv_stride {_MADE}"
    " result:f32[rows, value_heads, value_dim; result_stride] result_stride"
    f" {_SIZES} conv:cache matrix:cache turns:cache written:cache",
)
def delta_update(past_caches: int, vectors: int, lanes: int) -> Body:
    """Takes the rows of a run, of one sequence, through some columns of a head's matrix.

    ``runs`` are the first rows of all runs, and what follows the last one. Of each run there are
    ``value_heads * value_dim / (vectors * lanes)`` units, which are chunks one after the other.
    Each also keeps its share of the latest rows of ``qkv``. If ``past_caches`` is 1, what single
    rows make of a matrix goes to memory, for caches would not hold it until it is read. An element
    has three roundings a token; sums over a key are added up in its order, in float32.
    """
    columns, carry = vectors * lanes, _carrying(past_caches, vectors, lanes)

    def body(a: Arguments, chunk: int) -> None:
        blocks = a.value_dim // columns
        units = a.value_heads * blocks
        run, unit = chunk // units, chunk % units
        # Threads that take units one after the other are in different matrices: what one of them
        # writes lies beside what the processor fetches ahead for the other.
        head, column = unit % a.value_heads, unit // a.value_heads * columns
        first, end = int_at(a.runs, run), int_at(a.runs, run + 1)
        sequence, position = int_at(a.sequences, first), int_at(a.positions, first)
        written = (word(a.turns, sequence) & ROW_MASK) ^ 1
        begun, size = begun_row(a, sequence, position), a.key_dim * a.value_dim
        place = a.matrix + (head * size + column) * 4
        source = place + begun * a.value_heads * size * 4
        target = place + written * a.value_heads * size * 4
        if position == 0:
            source = target
            clear(target, a.key_dim, a.value_dim * 4, columns * 4, lanes)
        carry(a, first, end, head, column, source, target)
        keep_tokens(a, first, end, begun, written, unit, units)
        if unit == 0:
            set_int(a.written, sequence, 1)

    return body


def _carrying(past_caches: int, vectors: int, lanes: int) -> Callable[..., None]:
    """The function that lets tokens change some columns, one after the other."""
    row_bytes, sums_bytes = vectors * lanes * 4, 2 * vectors * lanes * 4

    @njit(inline="always")
    def respond(a, gates, head, values, sums, step, result):  # type: ignore[no-untyped-def]
        """Makes the change and the result of a token from the products of its key and query."""
        forget = load_splat(gates + head * 4, lanes)
        strength = load_splat(gates + (a.value_heads + head) * 4, lanes)
        product = load_splat(gates + (2 * a.value_heads + head) * 4, lanes)
        for index in range(0, row_bytes, lanes * 4):
            predicted = forget * load(sums + index, "f32", lanes)
            correction = strength * (load(values + index, "f32", lanes) - predicted)
            seen = forget * load(sums + row_bytes + index, "f32", lanes)
            store(step + index, correction)
            store(result + index, fma(product, correction, seen))

    @njit(inline="always")
    def carry(a, first, end, head, column, source, target):  # type: ignore[no-untyped-def]
        """Lets rows ``first .. end - 1`` change what lies at ``source`` and then at ``target``."""
        sums, step = scratch(sums_bytes), scratch(row_bytes)
        rows, stride = a.key_dim, a.value_dim * 4
        shared = head // (a.value_heads // a.key_heads)
        query, key = shared * rows * 4, (a.key_heads + shared) * rows * 4
        value = (2 * a.key_heads * rows + head * a.value_dim + column) * 4
        gates, mixed = a.gates + first * a.gates_stride * 4, a.mixed + first * a.mixed_stride * 4
        result = a.result + (first * a.result_stride + head * a.value_dim + column) * 4
        add_products(source, stride, rows, mixed + key, mixed + query, sums, vectors, lanes)
        for row in range(first, end):
            respond(a, gates, head, mixed + value, sums, step, result)
            token = (mixed + key, step, float_at(gates, head))
            gates += a.gates_stride * 4
            mixed += a.mixed_stride * 4
            result += a.result_stride * 4
            if row + 1 < end:
                new_key, new_query = mixed + key, mixed + query
                change_and_add(
                    source, target, stride, rows, token, new_key, new_query, sums, vectors, lanes
                )
            elif past_caches and row == first:
                change(source, target, stride, rows, token, 1, vectors, lanes)
            else:
                change(source, target, stride, rows, token, 0, vectors, lanes)
            source = target

    carrying: Callable[..., None] = carry
    return carrying


@njit(inline="always")
def clear(target, rows, stride, nbytes, lanes):  # type: ignore[no-untyped-def]
    """Fills parts of rows with zeros."""
    for row in range(rows):
        for index in range(0, nbytes, lanes * 4):
            store(target + row * stride + index, splat(float32(0), "f32", lanes))


@njit(inline="always")
def keep_tokens(a, first, end, begun, written, unit, units):  # type: ignore[no-untyped-def]
    """Keeps a unit's share of the columns of the latest tokens, zeros before position 0.

    Rows move towards the front, so the state may be the one that is read.
    """
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
            copy_floats(a.qkv + (row * a.qkv_stride + begin) * 4, target + place * width * 4, size)
        else:
            old = past + row - first
            copy_floats(source + old * width * 4, target + place * width * 4, size)
