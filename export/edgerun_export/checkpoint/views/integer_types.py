"""Layers that checkpoints store as integers: what their types are called, and words of codes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from edgerun_export.checkpoint.base import Array
from edgerun_export.checkpoint.codecs import Codec
from edgerun_export.checkpoint.stored import Stored

WORD_BITS = 32
GPTQ, AWQ, COMPRESSED = "GPTQ", "AWQ", "compressed-tensors INT"
SYMMETRIC = " symmetric"  # behind such a name: all zero points are the middle of the codes
REORDERED = " reordered"  # groups are no runs of inputs of one length

_BITS = {GPTQ: (2, 4, 8), AWQ: (4,), COMPRESSED: (2, 4, 8)}
READABLE = {method: tuple(f"{method}{each}" for each in bits) for method, bits in _BITS.items()}

# By the name of a type: the format that holds its codes, scales and zero points.
INTEGER_FORMATS = {
    f"{method}{bits}{suffix}": f"int{bits}{ending}"
    for method, widths in _BITS.items()
    for bits in widths
    for suffix, ending in (("", "_asym"), (SYMMETRIC, ""))
}

# Types of the safetensors format that are read of such layers alone.
I32 = Codec("I32", 1, 4, lambda blocks: blocks.view("<i4"), np.int32)
I64 = Codec("I64", 1, 8, lambda blocks: blocks.view("<i8"), np.int64)


def with_integers(stored: Mapping[str, Stored], parts: Mapping[str, Codec]) -> dict[str, Stored]:
    """Tensors of a checkpoint, those that layers of integers are made of readable.

    Args:
        stored: the tensors.
        parts: the types that are to be read of tensors, by the last part of their names.
    """
    readable: dict[str, Stored] = {}
    for name, each in stored.items():
        codec = parts.get(name.rpartition(".")[2])
        is_of_type = codec is not None and each.codec.name == codec.name
        readable[name] = replace(each, codec=codec) if codec and is_of_type else each
    return readable


def digits(words: Array, bits: int) -> NDArray[np.int16]:
    """Numbers of so many bits from int32 ``[..., n]``, lowest first, ``[..., n, 32 / bits]``."""
    shifts = np.arange(0, WORD_BITS, bits, dtype=np.uint32)
    numbers = (words.view(np.uint32)[..., None] >> shifts) & np.uint32((1 << bits) - 1)
    return numbers.astype(np.int16)
