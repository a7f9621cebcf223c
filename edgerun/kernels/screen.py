"""Linear layers for a few chosen weight rows: what is left to do after screening a head."""

from __future__ import annotations

from edgerun.kernels.block_tiles import block_tile
from edgerun.kernels.registry import Body, kernel
from edgerun.kernels.tiles import scratch
from edgerun.kernels.word import float_at, int_at, set_float, word


@kernel("linear_chosen", "count index codes scales out step tiles x x_scale x_sum blocks")
def linear_chosen(bits: int, lanes: int, block: int, isa: str) -> Body:
    """``linear_block`` for one activation row and the weight rows ``index``, int32 ``[count]``.

    Result i goes to ``out[index[i]]`` and has the bits that ``linear_block`` gives: the same sums
    in the same order. ``count`` is the address of the number of rows; a chunk takes ``step``.
    """

    def body(a: int, chunk: int) -> None:
        row_bytes, blocks = word(a, 6) * lanes, word(a, 10)
        first = chunk * word(a, 5)
        sums = scratch(16)
        for place in range(first, min(word(word(a, 0), 0), first + word(a, 5))):
            row = int_at(word(a, 1), place)
            block_tile(
                word(a, 2) + row * row_bytes,
                0,
                word(a, 7),
                0,
                word(a, 3) + row * blocks * 4,
                0,
                word(a, 8),
                word(a, 9),
                blocks,
                sums,
                1,
                1,
                bits,
                lanes,
                block,
                isa,
            )
            set_float(word(a, 4), row, float_at(sums, 0))

    return body
