"""A pass over some columns of a matrix that tokens change, one after the other.

The rows of the matrix belong to the elements of a key. Its columns have nothing to do with each
other, so a few vectors of them are carried through all tokens of a sequence. The change that one
token makes is applied while the products with what the next one reads it by, its query and in a
delta rule its key, are added up: each element is loaded and stored once a token.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from edgerun.kernels.lang.ir import (
    F32,
    I32,
    I64,
    fused,
    integer,
    literals,
    load_from,
    offset,
    pointer,
    store_to,
    variable,
)
from edgerun.kernels.lang.simd import Vec, broadcast, constant


@intrinsic(prefer_literal=True)
def add_products(typingctx, matrix, stride, count, readers, sums, vectors, lanes):  # type: ignore[no-untyped-def]
    """Sums of ``reader[i]`` times row ``i`` of ``vectors`` vectors, in order, for each reader.

    ``matrix`` is the address of the first of ``count`` rows, which lie ``stride`` bytes apart,
    ``readers`` a tuple of the addresses of keys and queries, ``sums`` that of float32
    ``[readers, vectors * lanes]``. Each sum is a fused operation.
    """
    values = literals(vectors, lanes)
    if values is None:
        return None

    def codegen(context, builder, sig, args):  # type: ignore[no-untyped-def]
        rows = _Rows(builder, *values)
        weights = cgutils.unpack_tuple(builder, args[3], readers.count)
        totals = rows.zeros(len(weights))
        with cgutils.for_range(builder, args[2], intp=I64) as loop:
            skipped = builder.mul(loop.index, args[1])
            row = rows.load(builder.add(args[0], skipped))
            rows.add(totals, weights, loop.index, row)
        rows.store_totals(totals, args[4])
        return context.get_dummy_value()

    return types.void(*[types.intp] * 3, readers, types.intp, vectors, lanes), codegen


@intrinsic(prefer_literal=True)
def change(typingctx, source, target, stride, count, token, past_caches, vectors, lanes):  # type: ignore[no-untyped-def]
    """Row ``i`` becomes ``forget * row + key[i] * step``, from ``source`` to ``target``.

    ``token`` are the addresses of a key and a step, and the number ``forget``; the rest is as of
    ``add_products``. ``target`` may be ``source``. If ``past_caches`` is 1, what is written goes to
    memory, where it need not be read first, and vectors lie at multiples of their size. The first
    product is rounded, and the sum.
    """
    values = literals(past_caches, vectors, lanes)
    if values is None:
        return None

    def codegen(context, builder, sig, args):  # type: ignore[no-untyped-def]
        streams, *sizes = values
        rows = _Rows(builder, *sizes, streams=bool(streams))
        rule = _Rule(rows, args[4])
        with cgutils.for_range(builder, args[3], intp=I64) as loop:
            skipped = builder.mul(loop.index, args[2])
            rule.apply(loop.index, *(builder.add(place, skipped) for place in args[:2]))
        if streams:
            builder.fence("seq_cst")  # which such stores are behind, too
        return context.get_dummy_value()

    return types.void(*[types.intp] * 4, _TOKEN, past_caches, vectors, lanes), codegen


@intrinsic(prefer_literal=True)
def change_and_add(  # type: ignore[no-untyped-def]
    typingctx, source, target, stride, count, token, readers, sums, vectors, lanes
):
    """``change``, and with what the next token reads by ``add_products`` of the result.

    Bits are those of the two one after the other.
    """
    values = literals(vectors, lanes)
    if values is None:
        return None

    def codegen(context, builder, sig, args):  # type: ignore[no-untyped-def]
        rows = _Rows(builder, *values)
        rule = _Rule(rows, args[4])
        weights = cgutils.unpack_tuple(builder, args[5], readers.count)
        totals = rows.zeros(len(weights))
        with cgutils.for_range(builder, args[3], intp=I64) as loop:
            skipped = builder.mul(loop.index, args[2])
            places = (builder.add(place, skipped) for place in args[:2])
            rows.add(totals, weights, loop.index, rule.apply(loop.index, *places))
        rows.store_totals(totals, args[6])
        return context.get_dummy_value()

    return types.void(*[types.intp] * 4, _TOKEN, readers, types.intp, vectors, lanes), codegen


_TOKEN = types.Tuple((types.intp, types.intp, types.float32))


def _store_past_caches(builder: Any, value: Any, address: Any) -> None:
    """Stores a float32 vector at a multiple of its size."""
    store = builder.store(value, pointer(builder, address, value.type))
    store.align = 4 * value.type.count
    store.set_metadata("nontemporal", builder.module.add_metadata([ir.Constant(I32, 1)]))


class _Rows:
    """Writes code for some vectors of each row."""

    def __init__(self, builder: Any, vectors: int, lanes: int, *, streams: bool = False) -> None:
        self.builder, self.vec, self._streams = builder, Vec("f32", lanes), streams
        self._places = [4 * lanes * place for place in range(vectors)]

    def zeros(self, times: int) -> list[list[Any]]:
        """Variables for so many sums of rows."""
        zero = constant(self.vec, 0)
        return [[variable(self.builder, zero) for _ in self._places] for _ in range(times)]

    def load(self, address: Any) -> list[Any]:
        """The vectors of a row."""
        return [
            load_from(self.builder, offset(self.builder, address, place), self.vec.llvm)
            for place in self._places
        ]

    def store(self, row: list[Any], address: Any) -> None:
        """Stores the vectors of a row."""
        write = _store_past_caches if self._streams else store_to
        for value, place in zip(row, self._places, strict=True):
            write(self.builder, value, offset(self.builder, address, place))

    def element(self, address: Any, index: Any) -> Any:
        """An element of an array, in all lanes."""
        place = self.builder.add(address, self.builder.shl(index, integer(2)))
        return broadcast(self.builder, load_from(self.builder, place, F32), self.vec)

    def add(self, totals: list[list[Any]], weights: Any, index: Any, row: list[Any]) -> None:
        """Adds a row to each of some sums, times an element of an array."""
        for total, address in zip(totals, weights, strict=True):
            weight = self.element(address, index)
            for each, value in zip(total, row, strict=True):
                self.builder.store(
                    fused(self.builder, weight, value, self.builder.load(each)), each
                )

    def store_totals(self, totals: list[list[Any]], address: Any) -> None:
        """Stores sums of rows, one behind the other."""
        size = 4 * self.vec.lanes * len(self._places)
        for number, total in enumerate(totals):
            row = [self.builder.load(each) for each in total]
            self.store(row, offset(self.builder, address, number * size))


class _Rule:
    """Writes code for the change that a token makes to each row."""

    def __init__(self, rows: _Rows, token: Any) -> None:
        self._rows = rows
        self._key, step, forget = cgutils.unpack_tuple(rows.builder, token, 3)
        self._step, self._forget = rows.load(step), broadcast(rows.builder, forget, rows.vec)

    def apply(self, index: Any, source: Any, target: Any) -> list[Any]:
        """Changes a row; returns what it is then."""
        builder, weight = self._rows.builder, self._rows.element(self._key, index)
        row = [
            fused(builder, weight, step, builder.fmul(self._forget, value))
            for step, value in zip(self._step, self._rows.load(source), strict=True)
        ]
        self._rows.store(row, target)
        return row
