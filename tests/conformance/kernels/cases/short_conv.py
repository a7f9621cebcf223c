"""Convolutions over tokens in pages."""

from __future__ import annotations

from typing import Any

import numpy as np

from edgerun.ops.registry import OPS
from edgerun.state import AttentionState, Batch, SequenceStore
from tests.conformance.kernels.cases.attention import cache_fields
from tests.conformance.kernels.harness import ISAS, Call, cases_of, float_lanes, random

# Of each sequence, tokens in the cache and rows behind them: at the beginning, across a page's end.
PARTS = ((0, 4), (62, 3), (130, 1))


def filled(width: int, count: int) -> tuple[SequenceStore, Batch]:
    attributes = {"layer": 0, "width": width, "count": count}
    declare = OPS["short_conv"].state
    assert declare is not None
    state = declare(attributes)
    assert isinstance(state, AttentionState)
    # A second layer, so that pages hold more than what a kernel reads.
    other = declare({**attributes, "layer": 1})
    cache, batches = SequenceStore((state, other), 256, len(PARTS)), []
    for tokens, rows in PARTS:
        slot = cache.open()
        cache.reserve(slot, tokens + rows)
        cached = random((tokens, 1, width), slot + 5)
        cache.write_block(state.name, slot, 0, (cached, np.empty((tokens, 1, 0), np.float32)))
        batches.append(Batch.of([0] * rows, tokens, slot))
    return cache, Batch.join(batches)


def fields_of(cache: SequenceStore, batch: Batch) -> dict[str, Any]:
    fields = cache_fields(cache, batch)
    names = ("positions", "sequences", "key_data", "page_table", "pages", "page_heads")
    return {name: fields[name] for name in names}


@cases_of("short_conv_write", isa=ISAS, width=[64, 20])
def short_conv_write(isa: str, width: int) -> Call:
    (cache, batch), (expected, _) = (filled(width, 3) for _ in range(2))
    gate, value = random((batch.rows, width), 1, gap=2), random((batch.rows, width), 2, gap=3)

    def check() -> None:
        product = (gate[:, :width] * value[:, :width])[:, None]
        nothing = np.empty((1, 1, 0), np.float32)
        for row in range(batch.rows):
            place = expected.states[0].name, int(batch.sequences[row]), int(batch.positions[row])
            expected.write_block(*place, (product[row : row + 1], nothing))
        stores = (
            store.pool(store.states[0].name).arrays["key_data"] for store in (cache, expected)
        )
        np.testing.assert_array_equal(*stores)

    fields = {"gate": gate, "gate_stride": width + 2, "value": value, "value_stride": width + 3}
    fields |= fields_of(cache, batch) | {"width": width}
    return Call({"lanes": float_lanes(isa)}, fields, batch.rows, check)


@cases_of("short_conv", isa=ISAS, shape=[(64, 3), (20, 4), (16, 1)])
def short_conv(isa: str, shape: tuple[int, int]) -> Call:
    width, count = shape
    (cache, batch), (expected, _) = (filled(width, count) for _ in range(2))
    gate, value, out = (random((batch.rows, width), seed) for seed in (1, 2, 3))
    taps = random((count * width,), 4)
    attributes = {"layer": 0, "width": width, "count": count}
    (results,) = OPS["short_conv"].evaluate([gate, value, out, taps], attributes, batch, expected)
    # The kernel reads what another one wrote.
    OPS["short_conv"].evaluate([gate, value, out, taps], attributes, batch, cache)
    result = np.full((batch.rows, width + 5), np.nan, np.float32)

    def check() -> None:
        np.testing.assert_array_equal(result[:, :width], results)
        assert np.isnan(result[:, width:]).all()

    fields = {"out": out, "out_stride": width, "taps": taps, "count": count, "width": width}
    fields |= {"result": result, "result_stride": width + 5} | fields_of(cache, batch)
    return Call({"lanes": float_lanes(isa)}, fields, batch.rows, check)
