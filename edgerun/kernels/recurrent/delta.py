"""The mixing of layers of linear attention: ``ops/recurrent/gated_delta.py`` has the formulas.

One kernel makes queries, keys, values and gates of all rows. Another takes a sequence's rows in
order, for some columns of a head's matrix at a time. What a row gets is the same by a bit whatever
rows are in the call beside it.

Buffers are float32 ``[rows, stride]``; ``lanes``, the number of float32 in a vector, divides
``key_dim`` and ``value_dim``.
"""

from __future__ import annotations

from math import sqrt

from numba import float32, njit

from edgerun.kernels.jit.declare import Arguments, Body, kernel
from edgerun.kernels.lang.simd import fma, lane, load, load_splat, reduce_add, splat, store
from edgerun.kernels.lang.tiles import scratch
from edgerun.kernels.lang.vectormath import exp, sigmoid, softplus
from edgerun.kernels.lang.word import float_at, int_at, set_float, set_int
from edgerun.kernels.recurrent.columns import carrying, states_of
from edgerun.kernels.recurrent.tokens import TAPS_BYTES, convolving, find_tokens, keep_tokens

_SIZES = "width count key_heads value_heads key_dim value_dim"
_BATCH = "rows:i64[1] positions:i32[rows] sequences:i32[rows]"
_MADE = (
    "mixed:f32[rows, width; mixed_stride] mixed_stride"
    " gates:f32[rows, 3 * value_heads; gates_stride] gates_stride"
)


@kernel(
    "delta_inputs",
    f"{_BATCH} qkv:f32[rows, width; qkv_stride] qkv_stride"
    " decay:f32[rows, value_heads; decay_stride] decay_stride"
    " write:f32[rows, value_heads; write_stride] write_stride taps:f32[count, width]"
    " rate:f32[value_heads] offset:f32[value_heads] epsilon:f32[1] strength:f32[1]"
    f" {_MADE} {_SIZES} conv:cache turns:cache",
)
def delta_inputs(lanes: int) -> Body:
    """Makes queries, keys and values of a convolution, and gates; chunk = row * key_heads + head.

    ``mixed`` are queries and keys, divided by their lengths, and values, in the order of ``qkv``;
    ``gates`` of each value head what its matrix is multiplied by, how much of a change is made, and
    the product of key and query. Relative error of an element below 2e-6 in practice.
    """
    convolve = convolving(lanes)

    @njit(inline="always")
    def scale(a, row, first, size, factor):  # type: ignore[no-untyped-def]
        address, factors = a.mixed + (row * a.mixed_stride + first) * 4, splat(factor, "f32", lanes)
        for index in range(0, size * 4, lanes * 4):
            store(address + index, load(address + index, "f32", lanes) * factors)

    def body(a: Arguments, chunk: int) -> None:
        row, head = chunk // a.key_heads, chunk % a.key_heads
        sources, key_dim = scratch(TAPS_BYTES), a.key_dim
        mixed = a.mixed + row * a.mixed_stride * 4
        find_tokens(a, a.qkv, a.qkv_stride, row, sources)
        query, key = head * key_dim, (a.key_heads + head) * key_dim
        epsilon = float_at(a.epsilon, 0)
        length = float32(sqrt(convolve(a, sources, mixed, 0, query, key_dim) + epsilon))
        scale(a, row, query, key_dim, float32(1) / (length * float32(sqrt(float32(key_dim)))))
        length = float32(sqrt(convolve(a, sources, mixed, 0, key, key_dim) + epsilon))
        scale(a, row, key, key_dim, float32(1) / length)
        shared = a.value_heads // a.key_heads
        value = 2 * a.key_heads * key_dim + head * shared * a.value_dim
        convolve(a, sources, mixed, 0, value, shared * a.value_dim)
        product = splat(float32(0), "f32", lanes)
        for index in range(0, key_dim, lanes):
            left = load(mixed + (query + index) * 4, "f32", lanes)
            product = fma(left, load(mixed + (key + index) * 4, "f32", lanes), product)
        set_gates(a, row, head * shared, (head + 1) * shared, reduce_add(product))

    return body


@njit(inline="always")
def set_gates(a, row, first, end, product):  # type: ignore[no-untyped-def]
    """Sets the three numbers of some value heads."""
    gates, heads = a.gates + row * a.gates_stride * 4, a.value_heads
    decay, write = a.decay + row * a.decay_stride * 4, a.write + row * a.write_stride * 4
    for head in range(first, end):
        raw = load_splat(decay + head * 4, 1) + load_splat(a.offset + head * 4, 1)
        forget = exp(load_splat(a.rate + head * 4, 1) * softplus(raw))
        set_float(gates, head, lane(forget, 0))
        opened = lane(sigmoid(load_splat(write + head * 4, 1)), 0)
        set_float(gates, heads + head, opened * float_at(a.strength, 0))
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
    columns, row_bytes = vectors * lanes, vectors * lanes * 4

    @njit(inline="always")
    def readers(mixed, key, query):  # type: ignore[no-untyped-def]
        return mixed + key, mixed + query

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

    carry = carrying(respond, readers, 2, (past_caches, vectors, lanes))

    def body(a: Arguments, chunk: int) -> None:
        units = a.value_heads * a.value_dim // columns
        number, unit = chunk // units, chunk % units
        # Threads that take units one after the other are in different matrices: what one of them
        # writes lies beside what the processor fetches ahead for the other.
        head, column = unit % a.value_heads, unit // a.value_heads * columns
        run = (int_at(a.runs, number), int_at(a.runs, number + 1))
        shared, keys = head // (a.value_heads // a.key_heads), a.key_heads * a.key_dim
        places = (keys + shared * a.key_dim, shared * a.key_dim, 2 * keys + head * a.value_dim)
        carry(a, run, head, column, (a.value_heads, a.key_dim, a.value_dim), places)
        keep_tokens(a, a.qkv, a.qkv_stride, run, states_of(a, run[0]), unit, units)
        if unit == 0:
            set_int(a.written, int_at(a.sequences, run[0]), 1)

    return body
