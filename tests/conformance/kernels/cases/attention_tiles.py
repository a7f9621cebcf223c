"""Cases of attention in bfloat16, and of bringing pages into the order of tiles."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgerun.kernels.attention.units import SINGLE, STACKED, TURNED, turned_bytes
from edgerun.kernels.lang.bfloat16 import LANES
from edgerun.state import Batch, SequenceStore, same_attention
from tests.conformance.kernels.cases.attention import (
    PAGE_TOKENS,
    PREFILL,
    SOFTCAP,
    Counted,
    attention_call,
    cache_fields,
    filled_cache,
)
from tests.conformance.kernels.harness import BFLOAT16_MULTIPLIERS, UNTOUCHED, Call, cases_of

BOUND_BFLOAT16 = 2e-2
# Heads of other widths go to ``attention_many``.
TILED = [(64, 4, 2, "fp16"), (128, 2, 1, "int8"), (32, 7, 2, "fp32"), (96, 1, 2, "fp16")]
TILED_STACK, TURNED_STACK = 32, 5  # rows of a unit, where one and where several share pages
# All shapes on what multiplies here, or on the first model of it, and two on the others: compiling
# takes most of the time.
TILED_VARIANTS = [
    (multiplier, shape)
    for multiplier in BFLOAT16_MULTIPLIERS
    for shape in (TILED if multiplier == BFLOAT16_MULTIPLIERS[0] else TILED[:2])
]


def page_tiles(counted: Counted, cache: SequenceStore, batch: Batch) -> NDArray[np.uint8]:
    """What pages become once for several units, uint8 ``[pages, kv_heads, bytes]``."""
    pool = cache.pool(cache.states[0].name)
    areas = []
    for row, number in counted.units.turned[: counted.counts[TURNED]].tolist():
        page = pool.page_table[batch.sequences[row], number]
        present = np.arange(PAGE_TOKENS) <= batch.positions[row] - number * PAGE_TOKENS
        heads = (pool.arrays[name][page, 0] for name in ("key_data", "value_data"))
        for k, v in zip(*heads, strict=True):
            keys, values = (bfloat16_bits(x * present[:, None].astype(x.dtype)) for x in (k, v))
            tiles = values.T.reshape(-1, 16, 2, 32).swapaxes(1, 2)
            areas.append(np.concatenate([keys.ravel(), tiles.ravel()]))
    return np.array(areas).view(np.uint8).reshape(-1, cache.states[0].kv_heads, areas[0].nbytes)


def bfloat16_bits(x: NDArray[Any]) -> NDArray[np.uint16]:
    """Rounded to the nearest, of two to the even one."""
    bits = x.astype(np.float32).view(np.uint32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)


@cases_of(
    "turn_pages", multiplier=BFLOAT16_MULTIPLIERS, shape=TILED, parts=PREFILL[1:], window=[0, 50]
)
def turn_pages(
    multiplier: str,
    shape: tuple[int, int, int, str],
    parts: tuple[tuple[int, int], ...],
    window: int,
) -> Call:
    head_dim, _, kv_heads, dtype = shape
    cache, batch = filled_cache(same_attention(1, kv_heads, head_dim, dtype), parts)
    counted = Counted(batch, cache, window, stack=3, room=3)
    counted.units.plan()
    count = int(counted.counts[TURNED])
    assert 0 < count <= 3
    turned = np.full((3, kv_heads, turned_bytes(head_dim)), UNTOUCHED, np.uint8)

    def check() -> None:
        expected = page_tiles(counted, cache, batch)
        keys = expected.shape[2] // 2
        ends = [
            int(batch.positions[row]) + 1 - page * PAGE_TOKENS
            for row, page in counted.units.turned[:count].tolist()
        ]
        for page, end in enumerate(ends):
            seen = min(PAGE_TOKENS, end) * head_dim * 2
            np.testing.assert_array_equal(turned[page, :, :seen], expected[page, :, :seen])
        np.testing.assert_array_equal(turned[:count, :, keys:], expected[..., keys:])
        assert (turned[count:] == UNTOUCHED).all()

    fields = cache_fields(cache, batch) | {"turned": turned, "room": 3}
    fields["turned_pages"] = counted.units.turned
    params = {"dtype": dtype, "head_dim": head_dim, "multiplier": multiplier}
    return Call(params, fields, 0, check, count * kv_heads)


@cases_of(
    "attention_bfloat16",
    variant=TILED_VARIANTS,
    parts=PREFILL,
    window=[0, 50],
    room=[0, 2, 9],
)
@cases_of(
    "attention_bfloat16",
    variant=TILED_VARIANTS,
    parts=PREFILL[2:],
    window=[0, 50],
    room=[0],
    softcap=[SOFTCAP],
)
def attention_bfloat16(
    variant: tuple[str, tuple[int, int, int, str]],
    parts: tuple[tuple[int, int], ...],
    window: int,
    room: int,
    softcap: float = 0.0,
) -> Call:
    multiplier, (head_dim, group, kv_heads, dtype) = variant
    params = {"dtype": dtype, "head_dim": head_dim, "group": group, "lanes": LANES}
    stack = TURNED_STACK if room else TILED_STACK
    params |= {"stack": stack, "multiplier": multiplier}
    fields, counted, check = attention_call(
        params, parts, window, kv_heads, stack, bound=BOUND_BFLOAT16, room=room, softcap=softcap
    )
    single, stacked = (int(counted.counts[kind]) for kind in (SINGLE, STACKED))
    counted.units.stacked[stacked : stacked + single] = counted.units.single[:single]
    fields |= {"units": counted.units.stacked, "room": room, "turned": 0}
    if counted.counts[TURNED]:
        turned = np.zeros((room, kv_heads, turned_bytes(head_dim)), np.uint8)
        pages = page_tiles(counted, counted.cache, counted.batch)
        turned[: len(pages)] = pages
        fields["turned"] = turned
    return Call(params, fields, 0, check, (single + stacked) * kv_heads)
