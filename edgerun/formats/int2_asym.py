"""int2_asym: codes 0..3, and every block has a zero point of its own among them."""

from edgerun.formats.base import BlockFormat

FORMAT = BlockFormat("int2_asym", bits=2, low=-2, high=1, has_zeros=True)
