"""What attention multiplies: queries with the keys of a page, weights with its values.

The shapes of both kernels' register blocks, and one block of each product. Which blocks are taken
in which order is up to the kernels: the result of a query does not depend on it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import gcd
from typing import TypeAlias

from numba import njit

from edgerun.kernels.attention.int8_tiles import score_codes, weigh_codes
from edgerun.kernels.attention.units import PAGE_TOKENS
from edgerun.kernels.lang.tiles import ELEMENT_BYTES, score_tile, weigh_tile

Product: TypeAlias = Callable[..., None]


@dataclass(frozen=True, slots=True)
class Blocking:
    """Shapes of the register blocks, and memory for the queries of a unit.

    Attributes:
        block: queries in a block.
        tokens: keys beside them.
        vectors: vectors of values beside them.
        padded: queries of a unit, rounded up to blocks.
        wide: bytes of a float32 vector of ``head_dim`` for each query.
        narrow: bytes of a float32 for each query and token of a page.
        pairs: bytes of two float32 for each query.
    """

    block: int
    tokens: int
    vectors: int
    padded: int
    wide: int
    narrow: int
    pairs: int


def blocking(queries: int, most: int, head_dim: int, lanes: int, sums: int = 8) -> Blocking:
    """Blocks of up to ``most`` of so many queries, with 8 sums in registers, of values more."""
    block = min(queries, most)
    padded = -(-queries // block) * block
    return Blocking(
        block=block,
        tokens=8 // block,
        vectors=gcd(head_dim // lanes, sums // block),
        padded=padded,
        wide=padded * head_dim * 4,
        narrow=padded * PAGE_TOKENS * 4,
        pairs=padded * 8,
    )


def products(dtype: str, head_dim: int, shape: Blocking, lanes: int) -> tuple[Product, Product]:
    """The two products of one block, for caches of a type.

    Returns:
        ``score(q, keys, p, m, token)``: scores of queries ``m ...`` against keys ``token ...``.
        ``weigh(p, values, factors, out, m, column, low, high)``: adds the values of tokens ``low``
        to ``high - 1``, weighted, to columns ``column ...`` of the outputs of queries ``m ...``.

        ``q`` and ``p`` are float32, or what ``round_rows`` makes of them if the cache is int8;
        then ``factors`` are those of ``p``.
    """
    return (_int8 if dtype == "int8" else _floats)(dtype, head_dim, shape, lanes)


def _floats(dtype: str, head_dim: int, shape: Blocking, lanes: int) -> tuple[Product, Product]:
    block, tokens, vectors, size = shape.block, shape.tokens, shape.vectors, ELEMENT_BYTES[dtype]

    @njit(inline="always")
    def score(q, keys, p, m, token):  # type: ignore[no-untyped-def]
        score_tile(
            q + m * head_dim * 4,
            keys + token * head_dim * size,
            p + (m * PAGE_TOKENS + token) * 4,
            PAGE_TOKENS,
            block,
            tokens,
            head_dim,
            dtype,
            lanes,
        )

    @njit(inline="always")
    def weigh(p, values, factors, out, m, column, low, high):  # type: ignore[no-untyped-def]
        weigh_tile(
            p + (m * PAGE_TOKENS + low) * 4,
            PAGE_TOKENS,
            values + (low * head_dim + column) * size,
            high - low,
            out + (m * head_dim + column) * 4,
            block,
            vectors,
            head_dim,
            dtype,
            lanes,
        )

    return score, weigh


def _int8(dtype: str, head_dim: int, shape: Blocking, lanes: int) -> tuple[Product, Product]:
    block, tokens = shape.block, shape.tokens
    score_lanes = gcd(head_dim, 2 * lanes)

    @njit(inline="always")
    def score(q, keys, p, m, token):  # type: ignore[no-untyped-def]
        score_codes(
            q + m * head_dim * 2,
            keys + token * head_dim,
            p + (m * PAGE_TOKENS + token) * 4,
            PAGE_TOKENS,
            block,
            tokens,
            head_dim,
            score_lanes,
        )

    weigh_block = weigh_int8(head_dim, shape, lanes, 0)

    @njit(inline="always")
    def weigh(p, values, factors, out, m, column, low, high):  # type: ignore[no-untyped-def]
        weigh_block(p, values, factors, out, m, column, low, high, 0)

    return score, weigh


def weigh_int8(head_dim: int, shape: Blocking, lanes: int, asked: int) -> Product:
    """``weigh`` of ``products`` for int8, with one argument more: where it asks for memory.

    ``asked`` is how many bytes that is for every two tokens.
    """
    block, vectors = shape.block, shape.vectors

    @njit(inline="always")
    def weigh(p, values, factors, out, m, column, low, high, ahead):  # type: ignore[no-untyped-def]
        even = low // 2 * 2  # tokens come in pairs; weights of the others are zero
        weigh_codes(
            p + (m * PAGE_TOKENS + even) * 2,
            PAGE_TOKENS,
            values + even * head_dim + column,
            (high - even + 1) // 2,
            factors + m * 4,
            out + (m * head_dim + column) * 4,
            ahead,
            block,
            vectors,
            head_dim,
            lanes,
            asked,
        )

    product: Product = weigh
    return product
