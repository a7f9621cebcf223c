"""int4: codes 0..15 around 8. Scales meet +7, so that code 0 (-8) serves rounding only."""

from edgerun.formats.base import BlockFormat

FORMAT = BlockFormat("int4", bits=4, low=-8, high=7)
