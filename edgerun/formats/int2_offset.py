"""int2_offset: codes 0..3, and every block has an offset, which the middle code stands for."""

from edgerun.formats.base import BlockFormat

FORMAT = BlockFormat("int2_offset", bits=2, low=-2, high=1, has_offsets=True)
