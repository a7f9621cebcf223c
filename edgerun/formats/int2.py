"""int2: codes 0..3 around 2, that is weights -2, -1, 0, 1 times the scale."""

from edgerun.formats.base import BlockFormat

FORMAT = BlockFormat("int2", bits=2, low=-2, high=1)
