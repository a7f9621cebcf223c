"""int8_asym: codes 0..255, and every block has a zero point of its own among them."""

from edgerun.formats.base import BlockFormat

FORMAT = BlockFormat("int8_asym", bits=8, low=-128, high=127, has_zeros=True)
