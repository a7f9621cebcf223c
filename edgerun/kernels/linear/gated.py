"""Gate and up projection of a feed-forward layer in one kernel.

``out[t, n] = activation(gate[t, n]) * up[t, n]``, where both are what ``rows.py`` computes, and the
product is that of ``pointwise/elementwise.py``: the same bits as three kernels, one after the
other, would give. The panels of both matrices are read side by side; neither gate nor up goes
through memory, and nothing waits between them. Of a network without a gate both are one matrix,
``matrices`` is 1, and nothing is multiplied twice; then ``up_...`` are not looked at. ``gated_...``
are for rows that take turns, ``gemm_gated_...`` for those of prompts, as ``linear_...`` and
``gemm_...`` are.
"""

from __future__ import annotations

from edgerun.kernels.jit.declare import Body, kernel
from edgerun.kernels.linear.gemm import (
    MANY_BLOCKS,
    Tiles,
    block_tiles,
    row_tiles,
)
from edgerun.kernels.linear.outputs import block_values, gated_store, row_values
from edgerun.kernels.linear.rows import BLOCK, ROW, SCALE_VECTORS, TURNS
from edgerun.kernels.linear.tiles import PACKED, zero_point
from edgerun.kernels.linear.turns import GATED, block_product, in_turns, row_product
from edgerun.kernels.pointwise.elementwise import gated

UP = "up_codes:u8[panels, tiles, lanes] up_bias?:f32[n]"
UP_ROW_SCALES = "up_scales:f32[panels, lanes // 4]"
UP_BLOCK_SCALES = f"up_scales:f32[panels, lanes // 4, {SCALE_VECTORS}]"


@kernel("gated_row", f"{ROW} {UP} {TURNS} {UP_ROW_SCALES}")
def gated_row(activation: str, bits: int, lanes: int, isa: str, matrices: int) -> Body:
    """``linear_row`` of gate and up; ``accumulate`` is not looked at."""
    values, combine = row_values(zero_point(bits, isa)), gated(activation)
    product = row_product(bits, PACKED, lanes, isa, GATED[matrices])
    return in_turns(product, gated_store(values, combine, lanes, matrices))


@kernel("gated_block", f"{BLOCK} {UP} {TURNS} {UP_BLOCK_SCALES}")
def gated_block(
    activation: str,
    bits: int,
    lanes: int,
    block: int,
    isa: str,
    zeros: int,
    halves: int,
    matrices: int,
) -> Body:
    """``linear_block`` of gate and up; ``accumulate`` is not looked at."""
    combine = gated(activation)
    product = block_product(bits, lanes, block, isa, zeros, halves, GATED[matrices])
    return in_turns(product, gated_store(block_values, combine, lanes, matrices))


@kernel("gemm_gated_row", f"{ROW} {UP} least {UP_ROW_SCALES}")
def gemm_gated_row(
    activation: str, bits: int, lanes: int, tokens: int, isa: str, matrices: int
) -> Body:
    """``gemm_row`` of gate and up; ``accumulate`` is not looked at."""
    values, combine = row_values(zero_point(bits, isa)), gated(activation)
    store_rows = gated_store(values, combine, lanes, matrices)
    return row_tiles(Tiles.of(bits, lanes, tokens, isa, GATED[matrices]), isa, store_rows)


@kernel("gemm_gated_block", f"{MANY_BLOCKS} {UP} {UP_BLOCK_SCALES}")
def gemm_gated_block(
    activation: str,
    bits: int,
    lanes: int,
    block: int,
    tokens: int,
    packed: int,
    isa: str,
    zeros: int,
    halves: int,
    matrices: int,
) -> Body:
    """``gemm_block`` of gate and up; ``accumulate`` is not looked at."""
    store_rows = gated_store(block_values, gated(activation), lanes, matrices)
    tiles = Tiles.of(bits, lanes, tokens, isa, GATED[matrices], block, packed)
    return block_tiles(tiles, isa, zeros, halves, store_rows)
