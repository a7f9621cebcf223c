"""int4_offset: codes 0..15, and every block has an offset, which the middle code stands for."""

from edgerun.formats.base import BlockFormat

FORMAT = BlockFormat("int4_offset", bits=4, low=-8, high=7, has_offsets=True)
