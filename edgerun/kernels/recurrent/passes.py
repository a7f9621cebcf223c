"""A pass over some columns of a matrix that a delta rule changes token by token.

The rows of the matrix belong to the elements of a key. Its columns have nothing to do with each
other, so a few vectors of them are carried through all tokens of a sequence. The change that one
token makes is applied while the products with the next one's key and query are added up: each
element is loaded and stored once a token.
"""

from __future__ import annotations

from typing import Any

from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from edgerun.kernels.lang.ir import (
    F32,
    I64,
    fused,
    integer,
    literals,
    load_from,
    offset,
    prefetch_line,
    store_to,
    variable,
)
from edgerun.kernels.lang.simd import Vec, broadcast, constant

LINE_BYTES = 64  # of the first cache


@intrinsic(prefer_literal=True)
def pass_over(  # type: ignore[no-untyped-def]
    typingctx, source, target, stride, count, old, new, sums, changes, adds, vectors, lanes
):
    """Changes ``count`` rows of ``vectors`` vectors, and adds up products with what they are then.

    Row ``i`` becomes ``forget * row + key[i] * change`` if ``changes`` is 1, from ``source`` to
    ``target``, whose rows are ``stride`` bytes apart. If ``adds`` is 1, ``sums[0]`` gets the sum of
    ``key[i] * row`` and ``sums[1]`` that of ``query[i] * row``, in order of ``i``, with the key and
    the query of the next token; what the next pass is to write is asked for meanwhile if nothing is
    changed. Each product and each sum is one fused operation, and ``forget *
    row`` is rounded.

    Args:
        typingctx: of Numba.
        source: address of the first row's elements.
        target: likewise; may be ``source``.
        stride: bytes from row to row.
        count: elements of a key.
        old: addresses of the key and the change, and the forgetting, of the token that changes.
        new: addresses of the key and the query of the token that adds.
        sums: address of float32 ``[2, vectors * lanes]``.
        changes: whether to change; compile-time constant, like the following.
        adds: whether to add.
        vectors: of a row.
        lanes: of a vector.
    """
    values = literals(changes, adds, vectors, lanes)
    if values is None:
        return None
    is_changing, is_adding, width, size = values
    vec = Vec("f32", size)

    def codegen(context, builder, sig, args):  # type: ignore[no-untyped-def]
        base, result, step, rows, (key, change, forget), (new_key, query), out = (
            *args[:4],
            cgutils.unpack_tuple(builder, args[4], 3),
            cgutils.unpack_tuple(builder, args[5], 2),
            args[6],
        )
        places = range(width)

        def element(address: Any, index: Any) -> Any:
            place = builder.add(address, builder.shl(index, integer(2)))
            return broadcast(builder, load_from(builder, place, F32), vec)

        def vectors_at(address: Any) -> list[Any]:
            return [
                load_from(builder, offset(builder, address, 4 * size * place), vec.llvm)
                for place in places
            ]

        update = vectors_at(change) if is_changing else []
        factor = broadcast(builder, forget, vec)
        totals = [variable(builder, constant(vec, 0)) for _ in range(2 * width * is_adding)]
        with cgutils.for_range(builder, rows, intp=I64) as loop:
            index = loop.index
            skipped = builder.mul(index, step)
            row = vectors_at(builder.add(base, skipped))
            if not is_changing:  # both come from memory, and what is written is read first
                for line in range(0, 4 * size * width, LINE_BYTES):
                    prefetch_line(builder, offset(builder, builder.add(result, skipped), line))
            if is_changing:
                weight, there = element(key, index), builder.add(result, skipped)
                row = [
                    fused(builder, weight, each, builder.fmul(factor, value))
                    for each, value in zip(update, row, strict=True)
                ]
                for place, value in enumerate(row):
                    store_to(builder, value, offset(builder, there, 4 * size * place))
            for part, address in enumerate((new_key, query)[: 2 * is_adding]):
                weight = element(address, index)
                for place, value in enumerate(row):
                    total = totals[part * width + place]
                    builder.store(fused(builder, weight, value, builder.load(total)), total)
        for place, total in enumerate(totals):
            store_to(builder, builder.load(total), offset(builder, out, 4 * size * place))
        return context.get_dummy_value()

    addresses = types.UniTuple(types.intp, 2)
    token = types.Tuple((types.intp, types.intp, types.float32))
    literal = (changes, adds, vectors, lanes)
    signature = types.void(*[types.intp] * 4, token, addresses, types.intp, *literal)
    return signature, codegen
