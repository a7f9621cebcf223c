"""Cases of attention and of writing its cache: ragged batches, windows, page boundaries."""

from __future__ import annotations

from typing import Any

import numpy as np

from edgerun.kernels import reference
from edgerun.state import Batch, CacheSpec, KVCache
from tests.kernels.harness import (
    F32,
    ISAS,
    UNTOUCHED,
    Call,
    assert_near,
    cases_of,
    float_lanes,
    random,
    untouched,
)

# What float32 summation may lose; scores here reach about 10, so exp costs 10 * 2**-23.
BOUND = 3e-6
# Batches: (tokens already cached, tokens in the batch) of every sequence.
DECODE = [((0, 1),), ((63, 1),), ((64, 1), (200, 1), (5, 1))]
PREFILL = [((0, 5),), ((60, 9), (0, 1), (127, 20)), ((100, 33),)]


def filled_cache(spec: CacheSpec, parts: tuple[tuple[int, int], ...]) -> tuple[KVCache, Batch]:
    """A cache with random tokens in shuffled pages, and the batch that continues them."""
    cache = KVCache(spec, context=300, max_sequences=len(parts))
    cache._free_pages = list(np.random.default_rng(0).permutation(cache._free_pages))
    batches = []
    for number, (cached, tokens) in enumerate(parts):
        sequence = cache.open()
        cache.reserve(sequence, cached + tokens)
        shape = (cached, spec.num_kv_heads, spec.head_dim)
        cache.write(0, sequence, 0, random(shape, 2 * number), random(shape, 2 * number + 1))
        batches.append(Batch.of([0] * tokens, cached, sequence))
    return cache, Batch.join(batches)


def cache_fields(cache: KVCache, batch: Batch) -> dict[str, Any]:
    """Fields that describe layer 0 of a cache and the rows of a batch."""
    return {
        "positions": batch.positions,
        "sequences": batch.sequences,
        "keys": cache.keys,
        "values": cache.values,
        "key_scales": cache.key_scales if cache.key_scales.size else 0,
        "value_scales": cache.value_scales if cache.value_scales.size else 0,
        "page_table": cache.page_table,
        "pages": cache.page_table.shape[1],
        "kv_heads": cache.spec.num_kv_heads,
        "page_heads": cache.spec.num_layers * cache.spec.num_kv_heads,
    }


@cases_of("cache_write", isa=ISAS, dtype=["fp32", "fp16", "int8"], shape=[(8, 3), (40, 1)])
def cache_write(isa: str, dtype: Any, shape: tuple[int, int]) -> Call:
    head_dim, kv_heads = shape
    spec = CacheSpec(1, kv_heads, head_dim, dtype)
    cache, batch = filled_cache(spec, PREFILL[1])
    expected, _ = filled_cache(spec, PREFILL[1])
    width = kv_heads * head_dim
    k, v = random((batch.rows, width), 1, gap=2), random((batch.rows, width), 2, gap=3)
    k[1, :head_dim] = 0

    def check() -> None:
        keys, values = (x[:, :width].reshape(batch.rows, kv_heads, head_dim) for x in (k, v))
        for row in range(batch.rows):
            place = (0, int(batch.sequences[row]), int(batch.positions[row]))
            expected.write(*place, keys[row : row + 1], values[row : row + 1])
        for name in ("keys", "values", "key_scales", "value_scales"):
            np.testing.assert_array_equal(getattr(cache, name), getattr(expected, name))

    fields = {"k": k, "k_stride": width + 2, "v": v, "v_stride": width + 3}
    params = {"dtype": dtype, "head_dim": head_dim, "lanes": float_lanes(isa)}
    return Call(params, fields | cache_fields(cache, batch), batch.rows, check)


def attention_call(
    params: dict[str, Any], parts: tuple[tuple[int, int], ...], window: int, kv_heads: int
) -> tuple[dict[str, Any], Batch, Any]:
    """Fields, batch and check of a call of either attention kernel."""
    head_dim, group = params["head_dim"], params["group"]
    cache, batch = filled_cache(CacheSpec(1, kv_heads, head_dim, params["dtype"]), parts)
    width = kv_heads * group * head_dim
    q = random((batch.rows, width), 1, gap=1)
    k, v = (random((batch.rows, kv_heads * head_dim), seed) for seed in (2, 3))
    scale, out = np.array([0.3 / head_dim**0.5], np.float32), untouched((batch.rows, width + 2))
    expected: F32 = reference.attention(
        q[:, :width],
        k,
        v,
        batch=batch,
        cache=cache,
        layer=0,
        num_heads=kv_heads * group,
        num_kv_heads=kv_heads,
        head_dim=head_dim,
        scale=float(scale[0]),
        window=window,
    )

    def check() -> None:
        assert_near(out[:, :width], expected, BOUND)
        assert (out[:, width:] == UNTOUCHED).all()

    fields = {"q": q, "q_stride": width + 1, "out": out, "out_stride": width + 2, "scale": scale}
    return fields | cache_fields(cache, batch) | {"window": window}, batch, check


# head_dim, query heads a kv head, kv heads, storage: chosen to meet every register blocking.
SHAPES = [(8, 1, 2, "fp32"), (64, 4, 2, "fp16"), (128, 2, 1, "int8"), (40, 7, 2, "fp16")]


# All shapes on the best instruction set, two on the others: compiling takes most of the time.
VARIANTS = [(isa, shape) for isa in ISAS for shape in (SHAPES if isa == ISAS[0] else SHAPES[1:3])]


@cases_of("attention", variant=VARIANTS, parts=DECODE, window=[0, 50])
def attention(
    variant: tuple[str, tuple[int, int, int, str]], parts: tuple[tuple[int, int], ...], window: int
) -> Call:
    isa, (head_dim, group, kv_heads, dtype) = variant
    params = {"dtype": dtype, "head_dim": head_dim, "group": group, "lanes": float_lanes(isa)}
    fields, batch, check = attention_call(params, parts, window, kv_heads)
    return Call(params, fields, batch.rows, check, batch.rows * kv_heads)


@cases_of("attention_many", variant=VARIANTS[1:], parts=PREFILL, window=[0, 50])
def attention_many(
    variant: tuple[str, tuple[int, int, int, str]], parts: tuple[tuple[int, int], ...], window: int
) -> Call:
    isa, (head_dim, group, kv_heads, dtype) = variant
    params = {"dtype": dtype, "head_dim": head_dim, "group": group, "lanes": float_lanes(isa)}
    fields, batch, check = attention_call(params, parts, window, kv_heads)
    return Call(params | {"rows": 8}, fields, batch.rows, check, -(-batch.rows // 8))
