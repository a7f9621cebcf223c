"""GGUF's types whose blocks have a minimum: ``weight = scale * code + minimum``.

Layouts follow ``ggml-quants.c`` of llama.cpp. Every function takes ``uint8 [blocks, block_bytes]``
and returns codes uint8 ``[blocks, weights]`` with scales and minima float32 ``[blocks, groups]``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from edgerun_export.checkpoint.base import F32, U8, Affine

Unpacked: TypeAlias = tuple[U8, F32, F32]


@dataclass(frozen=True, slots=True)
class Minima:
    """How a type stores codes and minima.

    Attributes:
        weights: the bundle's format that holds the codes.
        group: weights that share a scale and a minimum; divides the block.
        bits: of a code.
        unpack: reads blocks.
    """

    weights: str
    group: int
    bits: int
    unpack: Callable[[U8], Unpacked]

    def affine(self, blocks: U8) -> Affine:
        """Blocks to values around the middle of the codes."""
        codes, scales, minima = self.unpack(blocks)
        middle = 1 << (self.bits - 1)
        values = codes.astype(np.int8) - np.int8(middle)
        return Affine(values, scales, minima + np.float32(middle) * scales)


def _half(blocks: U8, at: int) -> F32:
    return blocks[:, at : at + 2].view("<f2").astype(np.float32)


def _nibbles(packed: U8) -> U8:
    """Low halves of groups of bytes ``[blocks, groups, bytes]``, then the high ones, flattened."""
    return np.concatenate([packed & 15, packed >> 4], axis=-1).reshape(len(packed), -1)


def _q4_1(blocks: U8) -> Unpacked:
    return _nibbles(blocks[:, None, 4:]), _half(blocks, 0), _half(blocks, 2)


def _q5_1(blocks: U8) -> Unpacked:
    """Four low bits of each weight as in Q4_1, after the fifth bits of all 32."""
    fifth = np.unpackbits(blocks[:, 4:8], axis=1, bitorder="little")
    codes = _nibbles(blocks[:, None, 8:]) | (fifth << np.uint8(4))
    return codes, _half(blocks, 0), _half(blocks, 2)


def _factors(packed: U8) -> tuple[F32, F32]:
    """Eight scales and eight minima of six bits from twelve bytes, float32 ``[blocks, 8]`` each."""
    first, second, upper = packed[:, :4], packed[:, 4:8], packed[:, 8:]
    scales = np.concatenate([first & 63, upper & 15 | first >> 2 & 48], axis=1)
    minima = np.concatenate([second & 63, upper >> 4 | second >> 2 & 48], axis=1)
    return scales.astype(np.float32), minima.astype(np.float32)


def _scaled(blocks: U8, at: int, scales: F32, minima: F32) -> tuple[F32, F32]:
    """Scales and minima in units of two halves; K types subtract what they call the minimum."""
    return _half(blocks, at) * scales, -(_half(blocks, at + 2) * minima)


def _q4_k(blocks: U8) -> Unpacked:
    codes = _nibbles(blocks[:, 16:].reshape(-1, 4, 32))
    return codes, *_scaled(blocks, 0, *_factors(blocks[:, 4:16]))


def _q5_k(blocks: U8) -> Unpacked:
    """Bit j of a byte of the fifth bits belongs to group j."""
    fifth = np.unpackbits(blocks[:, 16:48, None], axis=2, bitorder="little")
    codes = _nibbles(blocks[:, 48:].reshape(-1, 4, 32))
    codes |= fifth.transpose(0, 2, 1).reshape(len(blocks), -1) << np.uint8(4)
    return codes, *_scaled(blocks, 0, *_factors(blocks[:, 4:16]))


def _q2_k(blocks: U8) -> Unpacked:
    """Sixteen groups of 16, whose scales and minima have four bits."""
    shifts = np.array([0, 2, 4, 6], np.uint8)[:, None]
    codes: U8 = (blocks[:, 16:80].reshape(-1, 2, 1, 32) >> shifts) & np.uint8(3)
    factors = blocks[:, :16]
    scales, minima = (factors & 15).astype(np.float32), (factors >> 4).astype(np.float32)
    return codes.reshape(-1, 256), *_scaled(blocks, 80, scales, minima)


# By the name of a type.
MINIMA = {
    "Q4_1": Minima("int4_offset", 32, 4, _q4_1),
    "Q5_1": Minima("int8_offset", 32, 5, _q5_1),
    "Q2_K": Minima("int2_offset", 16, 2, _q2_k),
    "Q4_K": Minima("int4_offset", 32, 4, _q4_k),
    "Q5_K": Minima("int8_offset", 32, 5, _q5_k),
}
