"""The mixing of layers of state space duality: ``ops/recurrent/state_space.py`` has the formulas.

One kernel makes inputs, keys, queries and gates of all rows. Another takes a sequence's rows in
order, for some columns of a head's matrix at a time. What a row gets is the same by a bit whatever
rows are in the call beside it.

Buffers are float32 ``[rows, stride]``; ``lanes``, the number of float32 in a vector, divides
``head_dim`` and ``state_dim``.
"""

from __future__ import annotations

from numba import float32, njit

from edgerun.kernels.jit.declare import Arguments, Body, kernel
from edgerun.kernels.lang.simd import fma, lane, load, load_splat, reduce_add, splat, store
from edgerun.kernels.lang.tiles import scratch
from edgerun.kernels.lang.vectormath import exp, softplus
from edgerun.kernels.lang.word import int_at, set_float, set_int
from edgerun.kernels.recurrent.columns import carrying, states_of
from edgerun.kernels.recurrent.tokens import TAPS_BYTES, convolving, find_tokens, keep_tokens

_SIZES = "width count heads groups head_dim state_dim"
_BATCH = "rows:i64[1] positions:i32[rows] sequences:i32[rows]"
_MADE = (
    "mixed:f32[rows, width; mixed_stride] mixed_stride"
    " gates:f32[rows, 3 * heads; gates_stride] gates_stride"
)


@kernel(
    "space_inputs",
    f"{_BATCH} xbc:f32[rows, width; xbc_stride] xbc_stride"
    " step:f32[rows, heads; step_stride] step_stride taps:f32[count, width] bias:f32[width]"
    f" rate:f32[heads] offset:f32[heads] {_MADE} {_SIZES} conv:cache turns:cache",
)
def space_inputs(lanes: int) -> Body:
    """Makes inputs, keys and queries of a convolution, and gates; chunk = row * groups + group.

    ``mixed`` are these in the order of ``xbc``; ``gates`` of each head what its matrix is
    multiplied by, what an input is, and the product of key and query. Relative error of an element
    below 2e-6 in practice.
    """
    convolve = convolving(lanes)

    def body(a: Arguments, chunk: int) -> None:
        row, group = chunk // a.groups, chunk % a.groups
        sources, shared = scratch(TAPS_BYTES), a.heads // a.groups
        mixed, own = a.mixed + row * a.mixed_stride * 4, shared * a.head_dim
        find_tokens(a, a.xbc, a.xbc_stride, row, sources)
        convolve(a, sources, mixed, a.bias, group * own, own)
        key = a.heads * a.head_dim + group * a.state_dim
        query = key + a.groups * a.state_dim
        convolve(a, sources, mixed, a.bias, key, a.state_dim)
        convolve(a, sources, mixed, a.bias, query, a.state_dim)
        product = splat(float32(0), "f32", lanes)
        for index in range(0, a.state_dim, lanes):
            left = load(mixed + (query + index) * 4, "f32", lanes)
            product = fma(left, load(mixed + (key + index) * 4, "f32", lanes), product)
        set_gates(a, row, group * shared, (group + 1) * shared, reduce_add(product))

    return body


@njit(inline="always")
def set_gates(a, row, first, end, product):  # type: ignore[no-untyped-def]
    """Sets the three numbers of some heads."""
    gates, heads = a.gates + row * a.gates_stride * 4, a.heads
    steps = a.step + row * a.step_stride * 4
    for head in range(first, end):
        raw = load_splat(steps + head * 4, 1) + load_splat(a.offset + head * 4, 1)
        time = softplus(raw)
        set_float(gates, head, lane(exp(load_splat(a.rate + head * 4, 1) * time), 0))
        set_float(gates, heads + head, lane(time, 0))
        set_float(gates, 2 * heads + head, product)


@kernel(
    "space_update",
    f"{_BATCH} runs:i32[rows + 1] xbc:f32[rows, width; xbc_stride] xbc_stride {_MADE}"
    " skip:f32[heads] result:f32[rows, heads, head_dim; result_stride] result_stride"
    f" {_SIZES} conv:cache matrix:cache turns:cache written:cache",
)
def space_update(past_caches: int, vectors: int, lanes: int) -> Body:
    """Takes the rows of a run, of one sequence, through some columns of a head's matrix.

    ``runs`` are the first rows of all runs, and what follows the last one. Of each run there are
    ``heads * head_dim / (vectors * lanes)`` units, which are chunks one after the other. Each also
    keeps its share of the latest rows of ``xbc``. If ``past_caches`` is 1, what single rows make of
    a matrix goes to memory, for caches would not hold it until it is read. An element has two
    roundings a token; sums over a query are added up in its order, in float32.
    """
    columns, row_bytes = vectors * lanes, vectors * lanes * 4

    @njit(inline="always")
    def readers(mixed, key, query):  # type: ignore[no-untyped-def]
        return (mixed + query,)

    @njit(inline="always")
    def respond(a, gates, head, values, sums, step, result):  # type: ignore[no-untyped-def]
        """Makes the change and the result of a token from the products of its query."""
        forget = load_splat(gates + head * 4, lanes)
        time = load_splat(gates + (a.heads + head) * 4, lanes)
        product = load_splat(gates + (2 * a.heads + head) * 4, lanes)
        skip = load_splat(a.skip + head * 4, lanes)
        for index in range(0, row_bytes, lanes * 4):
            value = load(values + index, "f32", lanes)
            taken = time * value
            seen = fma(skip, value, forget * load(sums + index, "f32", lanes))
            store(step + index, taken)
            store(result + index, fma(product, taken, seen))

    carry = carrying(respond, readers, 1, (past_caches, vectors, lanes))

    def body(a: Arguments, chunk: int) -> None:
        units = a.heads * a.head_dim // columns
        number, unit = chunk // units, chunk % units
        head, column = unit % a.heads, unit // a.heads * columns  # as in ``delta_update``
        run = (int_at(a.runs, number), int_at(a.runs, number + 1))
        group, inputs = head // (a.heads // a.groups), a.heads * a.head_dim
        key = inputs + group * a.state_dim
        places = (key, key + a.groups * a.state_dim, head * a.head_dim)
        carry(a, run, head, column, (a.heads, a.state_dim, a.head_dim), places)
        keep_tokens(a, a.xbc, a.xbc_stride, run, states_of(a, run[0]), unit, units)
        if unit == 0:
            set_int(a.written, int_at(a.sequences, run[0]), 1)

    return body
