"""int8_offset: codes 1..255, and every block has an offset, which the middle code stands for."""

from edgerun.formats.base import BlockFormat

FORMAT = BlockFormat("int8_offset", bits=8, low=-127, high=127, has_offsets=True)
