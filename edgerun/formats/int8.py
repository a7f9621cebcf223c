"""int8: codes 1..255 around 128. Code 0 serves checkpoints that have it, and no rounding."""

from edgerun.formats.base import BlockFormat

FORMAT = BlockFormat("int8", bits=8, low=-127, high=127, lowest=-128)
