"""Counts the tile instructions of products, by the emulator.

    python -m tools.emulate_isa tiles -- -m tools.emulate_isa.tiles.counts

One line a product of 640 weight rows and K of 2560, whose numbers are proportional to weight rows.
"""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

from edgerun.env import settings
from edgerun.kernels.layouts.stream import to_stream
from edgerun.kernels.layouts.tile_order import strip_panels
from edgerun.kernels.run.program import ThreadTeam
from tests.conformance.kernels.cases import amx
from tests.conformance.kernels.cases.linear import (
    block_params,
    packed_weight,
    rounded_block,
    rounded_row,
    stream_fields,
)
from tests.conformance.kernels.harness import Call, random, run

N, K, ROWS = 640, 2560, (16, 17, 32, 33, 128, 512)
KINDS = ("ldtilecfg", "tilerelease", "tilezero", "tileloadd", "tilestored", "tdp")  # of tiles.c
SHOWN = ("ldtilecfg", "tileloadd", "tilestored", "tdp")
SETTING_NS, PRODUCT_NS = 145.0, 9.1  # on a Xeon (docs/adr/0038-strips-of-weights.md)


def counters() -> Any:
    """The emulator's, in this process."""
    library = ctypes.CDLL(str(settings().cache_dir / "tiles.so"))
    return np.ctypeslib.as_array((ctypes.c_uint64 * len(KINDS)).in_dll(library, "tile_counts"))


def product(block: int, rows: int) -> Call:
    """A ternary product with a scale a row, or one of int4 in blocks."""
    packed = packed_weight(("int4", block) if block else ("ternary", 32), N, K, row_scale=not block)
    weight = to_stream(packed, 64, row_scale=not block)
    x = random((rows, K))
    rounded = rounded_block(x, K, block) if block else rounded_row(x, K)
    params = block_params(weight, block) if block else {"bits": weight.bits, "lanes": 64}
    fields = stream_fields(weight, strip_panels(K)) | amx.tile_fields(rounded, block, True)
    strip = strip_panels(K)
    areas = np.zeros((1, strip * 16 * K), np.uint8)
    fields |= {"areas": areas, "area_bytes": areas.size, "slots": 1, "strip": strip}
    fields |= {"bias": 0, "accumulate": 0, "out": np.zeros((rows, N), np.float32)}
    fields |= {"out_stride": N, "n": N}
    chunks = -(-fields["panels"] // strip)
    return Call(params | amx.constants("amx", True), fields, rows, lambda: None, chunks)


def main() -> None:
    """Prints a Markdown table; microseconds are modelled."""
    counted, team = counters(), ThreadTeam(1)
    print("| product | rows |", " | ".join(SHOWN), "| setting up, us | products, us |")
    for block in (0, 32):
        for rows in ROWS if block == 0 else ROWS[:5]:
            call, before = product(block, rows), counted.copy()
            run("amx_block" if block else "amx_row", call, team)
            counts = dict(zip(KINDS, (counted - before).tolist(), strict=True))
            times = counts["ldtilecfg"] * SETTING_NS, counts["tdp"] * PRODUCT_NS
            cells = [f"{counts[kind]:,}" for kind in SHOWN] + [f"{ns / 1e3:.0f}" for ns in times]
            name = f"int4, blocks of {block}" if block else "ternary"
            print(f"| {name} | {rows} |", " | ".join(cells), "|")
    team.close()


if __name__ == "__main__":
    main()
