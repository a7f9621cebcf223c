"""How stored bytes become float32: one row per storage type.

Block layouts follow the GGUF specification and ``ggml-quants.c`` of llama.cpp. Every decoder is a
pure function from ``uint8 [blocks, block_bytes]`` to ``[blocks, block_weights]``; ``d`` is a
block's scale (float16). Types whose weights are integers times a scale are unpacked here, because
bundles can keep their codes as they are; the gguf package decodes the others.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from edgerun.errors import MissingDependencyError
from edgerun_export.checkpoint.base import F32, I8, U8, Array


@dataclass(frozen=True, slots=True)
class Codes:
    """How a type's weights are integers times scales.

    Attributes:
        high: the largest integer.
        group: weights that share a scale; divides the block.
        unpack: blocks to int8 ``[blocks, block_weights]`` and exact float32 scales
            ``[blocks, block_weights / group]``.
        uniform: whether those of all blocks are one scale.
    """

    high: int
    group: int
    unpack: Callable[[U8], tuple[I8, F32]]
    uniform: bool = False

    def decode(self, blocks: U8) -> Array:
        """Blocks to values."""
        integers, scales = self.unpack(blocks)
        grouped = integers.reshape(*scales.shape, self.group).astype(np.float32)
        grouped *= scales[:, :, None]
        return grouped.reshape(integers.shape)


@dataclass(frozen=True, slots=True)
class Codec:
    """A storage type.

    Attributes:
        name: as shown to users and in ``TensorInfo.dtype``.
        block_weights: weights in a block (1 for plain types).
        block_bytes: bytes in a block.
        decode: blocks to values; ``None`` where only the size is known.
        out: dtype of the decoded values.
        codes: how its weights are integers times scales, where they are.
        tail_bytes: bytes after the blocks of a tensor, of which the first four are a float32 scale
            of all blocks.
        with_scale: the codec of a tensor with that scale, where there is one; until it is read,
            only the size is known.
    """

    name: str
    block_weights: int
    block_bytes: int
    decode: Callable[[U8], Array] | None = None
    out: type[np.generic] = np.float32
    codes: Codes | None = None
    tail_bytes: int = 0
    with_scale: Callable[[np.float32], Codec] | None = None


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


def _q8_0(blocks: U8) -> tuple[I8, F32]:
    return blocks[:, 2:].view(np.int8), _half(blocks, 0)


def _q4_0(blocks: U8) -> tuple[I8, F32]:
    return _nibbles(blocks[:, 2:]).astype(np.int8) - np.int8(8), _half(blocks, 0)


def _q5_0(blocks: U8) -> tuple[I8, F32]:
    """Four low bits of each weight as in Q4_0, after the fifth bits of all 32."""
    fifth = np.unpackbits(blocks[:, 2:6], axis=1, bitorder="little")
    integers = _nibbles(blocks[:, 6:]) | (fifth << np.uint8(4))
    return integers.astype(np.int8) - np.int8(16), _half(blocks, 0)


def _q6_k(blocks: U8) -> tuple[I8, F32]:
    """Sixteen groups of 16 with an int8 scale; 4 low bits and 2 high bits are stored apart."""
    low = _nibbles(blocks[:, :128].reshape(-1, 2, 64)).reshape(-1, 2, 4, 32)
    shifts = np.array([0, 2, 4, 6], np.uint8)[:, None]
    high = (blocks[:, 128:192].reshape(-1, 2, 1, 32) >> shifts) & 3
    integers = (low | (high << 4)).astype(np.int8).reshape(-1, 256) - np.int8(32)
    return integers, _half(blocks, 208) * blocks[:, 192:208].view(np.int8).astype(np.float32)


def _trits(packed: U8, digits: int) -> I8:
    """Unpack base-3 digits, most significant first, from bytes that hold ``ceil(x*256/243)``.

    Returns values ``[blocks, digits, bytes]`` flattened after the first axis: that is their order.
    """
    powers = np.array([1, 3, 9, 27, 81], np.uint8)[:digits, None]
    shifted = packed[:, None, :] * powers
    values = (shifted.astype(np.uint16) * 3 >> 8).astype(np.int8) - np.int8(1)
    return values.reshape(len(packed), -1)


def _tq1_0(blocks: U8) -> tuple[I8, F32]:
    parts = [_trits(blocks[:, :32], 5), _trits(blocks[:, 32:48], 5), _trits(blocks[:, 48:52], 4)]
    return np.concatenate(parts, axis=1), _half(blocks, 52)


def _tq2_0(blocks: U8) -> tuple[I8, F32]:
    shifts = np.array([0, 2, 4, 6], np.uint8)[:, None]
    pairs = (blocks[:, :64].reshape(-1, 2, 1, 32) >> shifts) & 3
    return pairs.reshape(-1, 256).astype(np.int8) - np.int8(1), _half(blocks, 64)


MXFP4_BLOCK = 32
_MXFP4_TOP = 252  # with the next exponent the largest value, 6, would be no float32; 255 is NaN
# By code (OCP Microscaling Formats 1.0, table 5), twice the values: 0, 0.5, 1, 1.5, 2, 3, 4, 6.
_E2M1 = np.array([0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12], np.int8)


def mxfp4_values(codes: U8) -> I8:
    """Twice the values that 4-bit codes stand for."""
    values: I8 = _E2M1[codes]
    return values


def mxfp4_scales(exponents: U8) -> F32:
    """Half of what 8-bit exponents stand for, so that it goes with twice the values; or NaN."""
    scales: F32 = np.ldexp(np.float32(1), exponents.astype(np.int32) - 128)
    scales[exponents > _MXFP4_TOP] = np.nan
    return scales


def _mxfp4(blocks: U8) -> tuple[I8, F32]:
    return mxfp4_values(_nibbles(blocks[:, 1:])), mxfp4_scales(blocks[:, :1])


def _eight_bit_floats(exponent_bits: int) -> F32:
    """Values of all codes of a float with a sign, so many bits of exponent, and a mantissa.

    OCP 8-bit Floating Point Specification (OFP8) 1.0, section 5: E4M3 has no infinities and one NaN
    of each sign, E5M2 keeps its highest exponent for them as IEEE 754 does.
    """
    codes, mantissa_bits = np.arange(256), 7 - exponent_bits
    mantissa = np.ldexp(codes % (1 << mantissa_bits), -mantissa_bits)
    top, bias = (1 << exponent_bits) - 1, (1 << (exponent_bits - 1)) - 1
    exponent = codes >> mantissa_bits & top
    magnitude = np.ldexp(mantissa + (exponent > 0), np.maximum(exponent, 1) - bias)
    if exponent_bits == 4:
        magnitude[codes % 128 == 127] = np.nan
    else:
        magnitude[exponent == top] = np.where(mantissa[exponent == top], np.nan, np.inf)
    values: F32 = np.copysign(magnitude, np.where(codes < 128, 1, -1)).astype(np.float32)
    return values


def powers_of_two(exponents: U8) -> F32:
    """What E8M0 codes stand for; NaN for 255 (OCP Microscaling Formats 1.0, section 5.4.1)."""
    powers: F32 = np.ldexp(np.float32(1), np.minimum(exponents, 254).astype(np.int32) - 127)
    return np.where(exponents == 255, np.float32(np.nan), powers)


def _by_code(values: F32) -> Callable[[U8], Array]:
    def decode(blocks: U8) -> Array:
        decoded: Array = values[blocks]
        return decoded

    return decode


def _two_bits(blocks: U8) -> U8:
    """Codes of I2_S: 128 weights in 32 bytes, the first quarter of them in the two highest bits.

    So ``quantize_i2_s`` of bitnet.cpp has packed on x86 from the start, and its converters in
    Python on any machine. From November 2025 on it packs 64 weights into 16 bytes on ARM, and four
    rows into one if it was built without ``ACT_PARALLEL``; nothing in a file tells which.
    """
    shifts = np.array([6, 4, 2, 0], np.uint8)[:, None]
    codes: U8 = (blocks[:, None, :] >> shifts) & np.uint8(3)
    return codes.reshape(len(blocks), -1)


def _with_scale(scale: np.float32) -> Codec:
    """I2_S of a tensor; -1, 0 and 1 are stored as 0, 1 and 2."""
    # No weight is stored as 3: the readers refuse a value of 2, and what is not finite.
    values = np.array([-scale, 0, scale, np.nan], np.float32)

    def unpack(blocks: U8) -> tuple[I8, F32]:
        scales = np.full((len(blocks), 1), scale, np.float32)
        return _two_bits(blocks).astype(np.int8) - np.int8(1), scales

    return replace(
        _I2_S,
        decode=lambda blocks: values[_two_bits(blocks)],
        codes=Codes(1, _I2_S.block_weights, unpack, uniform=True),
        with_scale=None,
    )


_I2_S = Codec("I2_S", 128, 32, tail_bytes=32, with_scale=_with_scale)


def _coded(name: str, block_weights: int, block_bytes: int, codes: Codes) -> Codec:
    return Codec(name, block_weights, block_bytes, codes.decode, codes=codes)


def _by_gguf(name: str, block_weights: int, block_bytes: int) -> Codec:
    """A type that the gguf package decodes."""

    def decode(blocks: U8) -> Array:
        try:
            import gguf

            kind = gguf.GGMLQuantizationType[name]
            # As one row: the package works on sixteen rows at a time.
            values: Array = gguf.quants.dequantize(blocks.reshape(1, -1), kind)
        except (ImportError, KeyError, NotImplementedError) as error:
            raise MissingDependencyError(
                f"weights of type {name} need a newer gguf package: pip install --upgrade gguf"
            ) from error
        return values.reshape(len(blocks), block_weights)

    return Codec(name, block_weights, block_bytes, decode)


F32_CODEC = Codec("F32", 1, 4, _plain("<f4"))
_F16 = Codec("F16", 1, 2, _plain("<f2"))
_BF16 = Codec("BF16", 1, 2, _bf16)

# Weights of FP8 checkpoints, most of which have scales of their own (``views/fp8.py``).
FP8 = {
    name: Codec(name, 1, 1, _by_code(_eight_bit_floats(exponent_bits)))
    for name, exponent_bits in (("F8_E4M3", 4), ("F8_E5M2", 5))
}

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
        *FP8.values(),
        Codec("F8_E8M0", 1, 1, powers_of_two),
        Codec("BOOL", 1, 1),
        *(Codec(name, 1, 2) for name in ("I16", "U16")),
        *(Codec(name, 1, 4) for name in ("I32", "U32")),
        *(Codec(name, 1, 8) for name in ("I64", "U64", "F64", "C64")),
    )
}

# Type numbers of the GGUF format (ggml.h, enum ggml_type).
GGUF: dict[int, Codec] = {
    0: F32_CODEC,
    1: _F16,
    2: _coded("Q4_0", 32, 18, Codes(7, 32, _q4_0)),
    3: _by_gguf("Q4_1", 32, 20),
    6: _coded("Q5_0", 32, 22, Codes(15, 32, _q5_0)),
    7: _by_gguf("Q5_1", 32, 24),
    8: _coded("Q8_0", 32, 34, Codes(127, 32, _q8_0)),
    10: _by_gguf("Q2_K", 256, 84),
    11: _by_gguf("Q3_K", 256, 110),
    12: _by_gguf("Q4_K", 256, 144),
    13: _by_gguf("Q5_K", 256, 176),
    14: _coded("Q6_K", 256, 210, Codes(31, 16, _q6_k)),
    16: _by_gguf("IQ2_XXS", 256, 66),
    17: _by_gguf("IQ2_XS", 256, 74),
    18: _by_gguf("IQ3_XXS", 256, 98),
    19: _by_gguf("IQ1_S", 256, 50),
    20: _by_gguf("IQ4_NL", 32, 18),
    21: _by_gguf("IQ3_S", 256, 110),
    22: _by_gguf("IQ2_S", 256, 82),
    23: _by_gguf("IQ4_XS", 256, 136),
    29: _by_gguf("IQ1_M", 256, 56),
    30: _BF16,
    34: _coded("TQ1_0", 256, 54, Codes(1, 256, _tq1_0)),
    35: _coded("TQ2_0", 256, 66, Codes(1, 256, _tq2_0)),
    36: _I2_S,  # of bitnet.cpp's fork
    39: _coded("MXFP4", MXFP4_BLOCK, 17, Codes(12, MXFP4_BLOCK, _mxfp4)),
    40: _by_gguf("NVFP4", 64, 36),
}

# By the name of a type whose weights are integers times scales.
HIGHEST_INTEGER = {codec.name: codec.codes.high for codec in GGUF.values() if codec.codes}

# Names for the error message about a type that has no decoder.
GGUF_UNSUPPORTED: dict[int, str] = {
    **{9: "Q8_1", 15: "Q8_K", 24: "I8", 25: "I16", 26: "I32", 27: "I64", 28: "F64"},
    **{37: "I8_S of bitnet.cpp", 38: "TL1 of bitnet.cpp", 41: "Q1_0"},
}
# What bitnet.cpp's fork calls TL2; its scale is a tensor of its own, which has the name of the
# weight and this.
TL2_NUMBER, TL2_NAME, TL2_SCALE = 39, "TL2 of bitnet.cpp", "_scale"


def supported(table: dict[Any, Codec]) -> str:
    """List the types of a table that can be decoded, for an error message."""
    readable = (codec for codec in table.values() if codec.decode or codec.with_scale)
    return ", ".join(codec.name for codec in readable)
