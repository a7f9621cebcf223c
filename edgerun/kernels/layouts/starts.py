"""What sums of products begin with, where a constant is to be taken off.

Codes are above the weights they stand for, so that sums of products are too large by as much times
the sum of the activations. For many rows that is worked out once, for all weights of a layer.
"""

from __future__ import annotations

from typing import NamedTuple

from edgerun.kernels.lang.dot import DOTS
from edgerun.kernels.lang.isa import isa_of
from edgerun.kernels.layouts.zero_kinds import MIDDLE, OWN, RAISED

# A float32 whose last bit is worth 1, and its bits: with a whole number below 2**22 added to those
# they are the float32 that is larger by as much. Sums of blocks stay below 127 * 128 * 256.
BIAS, BIAS_BITS = 1.5 * 2**23, 0x4B400000


class Starts(NamedTuple):
    """What sums of blocks begin with: ``start + factor * x_sum``."""

    start: int
    factor: int


AS_THEY_ARE = Starts(0, 1)  # the sums of activations themselves


def middle_code(bits: int, isa: str) -> int:
    """What codes with the usual zero point are above their weights, as they are multiplied."""
    return 0 if bits == 8 and DOTS[isa_of(isa).dots].centred else 1 << (bits - 1)


def zeros_when_unpacked(bits: int, isa: str, zeros: int) -> int:
    """What zero points of blocks are where codes have been unpacked (``layouts/zero_kinds.py``).

    Raised codes have a bit more than codes: as bytes they stay in their range, sums of two products
    do not.
    """
    is_narrow = bits == 8 or DOTS[isa_of(isa).dots].depth(bits) > 0
    return RAISED if zeros == OWN and not is_narrow else zeros


def starts_of(bits: int, isa: str, zeros: int) -> Starts:
    """Those of unpacked codes, whose zero points are ``zeros``."""
    if zeros not in (MIDDLE, RAISED):
        return AS_THEY_ARE
    middle = (1 << bits) - 1 if zeros == RAISED else middle_code(bits, isa)
    return Starts(BIAS_BITS if isa_of(isa).subtracts_to_convert else 0, -middle)
