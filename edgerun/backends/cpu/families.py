"""Which kernels a linear layer goes through: their family, their path, the bytes they read.

A family is what the machine profile has a speed for: how the activations arrive, and how the
weights lie in memory. A path is how a kernel gets at its products, and each has a peak of its own.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import replace

from edgerun.backends.cpu.buffers import dense_shape
from edgerun.formats.base import FLOAT_BYTES, PackedWeight, has_half_scales
from edgerun.formats.stack import ExpertStack, Matrix
from edgerun.formats.trits import FAMILY_BITS
from edgerun.kernels.lang.isa import Isa
from edgerun.machine.profile import MULTIPLY, MachineProfile, family

BY_BLOCK = "int8_block"
LOOKUP, AMX = "lookup", "amx"
WIDEST_LOOKUP_BYTES = 32  # of vectors: those of 64 bytes multiply faster than tables are read
# Of the kernels that do not multiply with the instruction set's ordinary vectors.
PATHS: Mapping[str, str] = {
    "lookup_row": LOOKUP,
    "amx_row": AMX,
    "amx_block": AMX,
    "amx_gated_row": AMX,
    "amx_gated_block": AMX,
}
REGROUPED = "int8_128"  # of prompts, as ``regroup.py`` makes them
# Bits of a weight, by its name in a family.
WEIGHT_BITS: Mapping[str, float] = {
    "trits": FAMILY_BITS,
    "ternary": 2,
    "int2": 2,
    "int4": 4,
    "int8": 8,
    REGROUPED: 8,
    "float32": 32,
}
SCALE_BYTES = 4
ROWS_LOOKED_AT = 16  # for their scales: all of them would be read from disk


def paths_of(isa: Isa) -> tuple[str, ...]:
    """The paths that an instruction set has, whether usual or only where measured to be faster."""
    looks_up = isa.vector_bytes <= WIDEST_LOOKUP_BYTES
    return (MULTIPLY, *(LOOKUP,) * looks_up, *({isa.prompts} & {AMX}))


def paths_taken(kernels: Iterable[str]) -> tuple[str, ...]:
    """The paths of a program, from the names of its kernels."""
    return tuple(sorted({PATHS.get(name, MULTIPLY) for name in kernels}))


def family_of(weight: Matrix, activations: str, *, trits: bool) -> str:
    """Name of the kernel family of a linear layer in the machine profile.

    Args:
        weight: as the bundle stores it.
        activations: how they are to be rounded, see ``ops/linear.py``.
        trits: whether ternary weights are packed at 1.6 bits.
    """
    if not isinstance(weight, PackedWeight):
        return family("float", "float32")
    if activations == "int8_row" and not one_scale_a_row(weight):
        activations = BY_BLOCK
    if activations == "int8_row" and weight.format == "ternary":
        return family(activations, "trits" if trits else "ternary")
    return family(activations, f"int{weight.bits}")


def faster_family(usual: str, profile: MachineProfile) -> str:
    """Of prompts by weights that are regrouped; the usual one if the machine was measured before.

    Args:
        usual: the layer's family for all other rows.
        profile: of the machine.
    """
    regrouped = family(BY_BLOCK, REGROUPED)
    return regrouped if regrouped in profile.rates else usual


def weight_bytes(weight: Matrix | ExpertStack, activations: str, *, trits: bool) -> int:
    """Bytes that one pass over a weight reads, as it will lie in memory.

    Where all blocks of a row share a scale it is read once, whatever the bundle repeats. Rows of
    float32 are padded, which makes many times as much of very short ones.
    """
    if isinstance(weight, ExpertStack):  # never packed tighter; to look at all takes seconds
        return len(weight.matrices) * weight_bytes(weight.matrices[0], activations, trits=False)
    if not isinstance(weight, PackedWeight):
        is_padded = weight.ndim == 2 and bool(activations)  # the matrix of a linear layer
        return FLOAT_BYTES * math.prod(dense_shape(weight.shape)) if is_padded else weight.nbytes
    if activations != "int8_row" or not one_scale_a_row(weight):
        halved = activations.startswith("int8") and has_half_scales(_first_rows(weight))
        return weight.nbytes - halved * weight.scale_bytes // 2
    bits = FAMILY_BITS if trits and weight.format == "ternary" else weight.bits
    return math.ceil(weight.codes.nbytes * bits / weight.bits) + SCALE_BYTES * weight.shape[0]


def _first_rows(weight: PackedWeight) -> PackedWeight:
    """A few rows, whose scales stand for all."""
    shape, scales = (ROWS_LOOKED_AT, weight.shape[1]), weight.scales[:ROWS_LOOKED_AT]
    return replace(weight, shape=shape, scales=scales)


def one_scale_a_row(weight: PackedWeight) -> bool:
    """Whether all blocks of a row seem to share a scale, and the middle zero point."""
    scales = _first_rows(weight).scales
    return weight.is_centred and bool((scales == scales[:, :1]).all())
