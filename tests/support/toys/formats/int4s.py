"""int4s: codes 1..15 around 8, that is weights -7 to 7 times the scale."""

from edgerun.formats.base import BlockFormat

FORMAT = BlockFormat("int4s", bits=4, low=-7, high=7, group=64)
