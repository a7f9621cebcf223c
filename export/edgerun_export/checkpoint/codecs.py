"""How stored bytes become float32: one row per storage type.

Block layouts follow the GGUF specification and ``ggml-quants.c`` of llama.cpp. Every decoder is a
pure function from ``uint8 [blocks, block_bytes]`` to ``[blocks, block_weights]``; ``d`` is a
block's scale (float16).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from edgerun_export.checkpoint.base import F32, I8, U8, Array


@dataclass(frozen=True, slots=True)
class Codec:
    """A storage type.

    Attributes:
        name: as shown to users and in ``TensorInfo.dtype``.
        block_weights: weights in a block (1 for plain types).
        block_bytes: bytes in a block.
        decode: blocks to values; ``None`` where only the size is known.
        out: dtype of the decoded values.
        ternary: blocks to values in {-1, 0, 1, (2)} and one scale a block.
    """

    name: str
    block_weights: int
    block_bytes: int
    decode: Callable[[U8], Array] | None = None
    out: type[np.generic] = np.float32
    ternary: Callable[[U8], tuple[I8, F32]] | None = None


def _half(blocks: U8, at: int) -> F32:
    return blocks[:, at : at + 2].view("<f2").astype(np.float32)


def _plain(dtype: str) -> Callable[[U8], Array]:
    def decode(blocks: U8) -> Array:
        values: Array = blocks.view(dtype)
        return values

    return decode


def _bf16(blocks: U8) -> Array:
    # A bfloat16 is the upper half of a float32.
    return (blocks.view("<u2").astype(np.uint32) << 16).view(np.float32)


def _nibbles(packed: U8) -> U8:
    """Low halves of all bytes, then the high halves, along the last axis."""
    return np.concatenate([packed & 15, packed >> 4], axis=-1)


def _q8_0(blocks: U8) -> Array:
    return _half(blocks, 0) * blocks[:, 2:].view(np.int8).astype(np.float32)


def _q4_0(blocks: U8) -> Array:
    return _half(blocks, 0) * (_nibbles(blocks[:, 2:]).astype(np.float32) - 8)


def _q4_k(blocks: U8) -> Array:
    """Eight groups of 32 with a 6-bit scale and a 6-bit minimum each."""
    packed = blocks[:, 4:16]
    first, second, rest = packed[:, 0:4], packed[:, 4:8], packed[:, 8:12]
    scales = np.concatenate([first & 63, (rest & 15) | (first >> 6 << 4)], axis=1)
    minima = np.concatenate([second & 63, (rest >> 4) | (second >> 6 << 4)], axis=1)
    quants = _nibbles(blocks[:, 16:].reshape(-1, 4, 32)).reshape(-1, 8, 32).astype(np.float32)
    scale = (_half(blocks, 0) * scales)[:, :, None]
    minimum = (_half(blocks, 2) * minima)[:, :, None]
    values: Array = (scale * quants - minimum).reshape(-1, 256)
    return values


def _q6_k(blocks: U8) -> Array:
    """Sixteen groups of 16 with an int8 scale; 4 low bits and 2 high bits are stored apart."""
    low = _nibbles(blocks[:, :128].reshape(-1, 2, 64)).reshape(-1, 2, 4, 32)
    shifts = np.array([0, 2, 4, 6], np.uint8)[:, None]
    high = (blocks[:, 128:192].reshape(-1, 2, 1, 32) >> shifts) & 3
    quants = (low | (high << 4)).astype(np.float32).reshape(-1, 16, 16) - 32
    scales = _half(blocks, 208) * blocks[:, 192:208].view(np.int8).astype(np.float32)
    return (scales[:, :, None] * quants).reshape(-1, 256)


def _trits(packed: U8, digits: int) -> I8:
    """Unpack base-3 digits, most significant first, from bytes that hold ``ceil(x*256/243)``.

    Returns values ``[blocks, digits, bytes]`` flattened after the first axis: that is their order.
    """
    powers = np.array([1, 3, 9, 27, 81], np.uint8)[:digits, None]
    shifted = packed[:, None, :] * powers
    values = (shifted.astype(np.uint16) * 3 >> 8).astype(np.int8) - np.int8(1)
    return values.reshape(len(packed), -1)


def _tq1_0_ternary(blocks: U8) -> tuple[I8, F32]:
    parts = [_trits(blocks[:, :32], 5), _trits(blocks[:, 32:48], 5), _trits(blocks[:, 48:52], 4)]
    return np.concatenate(parts, axis=1), _half(blocks, 52)[:, 0]


def _tq2_0_ternary(blocks: U8) -> tuple[I8, F32]:
    shifts = np.array([0, 2, 4, 6], np.uint8)[:, None]
    pairs = (blocks[:, :64].reshape(-1, 2, 1, 32) >> shifts) & 3
    return pairs.reshape(-1, 256).astype(np.int8) - np.int8(1), _half(blocks, 64)[:, 0]


def _scaled(ternary: Callable[[U8], tuple[I8, F32]]) -> Callable[[U8], Array]:
    def decode(blocks: U8) -> Array:
        values, scales = ternary(blocks)
        return values.astype(np.float32) * scales[:, None]

    return decode


F32_CODEC = Codec("F32", 1, 4, _plain("<f4"))
_F16 = Codec("F16", 1, 2, _plain("<f2"))
_BF16 = Codec("BF16", 1, 2, _bf16)

# Types of the safetensors format. Those without a decoder (position ids, masks) may stand in a file
# as long as nobody reads them.
SAFETENSORS: dict[str, Codec] = {
    codec.name: codec
    for codec in (
        F32_CODEC,
        _F16,
        _BF16,
        Codec("U8", 1, 1, _plain("u1"), np.uint8),
        Codec("I8", 1, 1, _plain("i1"), np.int8),
        *(Codec(name, 1, 1) for name in ("BOOL", "F8_E4M3", "F8_E5M2", "F8_E8M0")),
        *(Codec(name, 1, 2) for name in ("I16", "U16")),
        *(Codec(name, 1, 4) for name in ("I32", "U32")),
        *(Codec(name, 1, 8) for name in ("I64", "U64", "F64", "C64")),
    )
}

# Type numbers of the GGUF format (ggml.h, enum ggml_type).
GGUF: dict[int, Codec] = {
    0: F32_CODEC,
    1: _F16,
    2: Codec("Q4_0", 32, 18, _q4_0),
    8: Codec("Q8_0", 32, 34, _q8_0),
    12: Codec("Q4_K", 256, 144, _q4_k),
    14: Codec("Q6_K", 256, 210, _q6_k),
    30: _BF16,
    34: Codec("TQ1_0", 256, 54, _scaled(_tq1_0_ternary), ternary=_tq1_0_ternary),
    35: Codec("TQ2_0", 256, 66, _scaled(_tq2_0_ternary), ternary=_tq2_0_ternary),
}

# Names for the error message about a type that has no decoder; 36 is I2_S in bitnet.cpp's fork.
GGUF_UNSUPPORTED: dict[int, str] = {
    **{3: "Q4_1", 6: "Q5_0", 7: "Q5_1", 9: "Q8_1", 10: "Q2_K", 11: "Q3_K", 13: "Q5_K"},
    **{15: "Q8_K", 16: "IQ2_XXS", 17: "IQ2_XS", 18: "IQ3_XXS", 19: "IQ1_S", 20: "IQ4_NL"},
    **{21: "IQ3_S", 22: "IQ2_S", 23: "IQ4_XS", 24: "I8", 25: "I16", 26: "I32", 27: "I64"},
    **{28: "F64", 29: "IQ1_M", 36: "I2_S", 39: "MXFP4", 40: "NVFP4"},
}


def supported(table: dict[Any, Codec]) -> str:
    """List the types of a table that can be decoded, for an error message."""
    return ", ".join(codec.name for codec in table.values() if codec.decode)
