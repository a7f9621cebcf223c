"""int4_asym: codes 0..15, and every block has a zero point of its own among them."""

from edgerun.formats.base import BlockFormat

FORMAT = BlockFormat("int4_asym", bits=4, low=-8, high=7, has_zeros=True)
