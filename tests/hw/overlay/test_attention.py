"""The definition of attention in whole numbers, held to attention in float, and its layout."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from edgerun.state.codecs import codec_named
from edgerun_hw.overlay.attention import (
    BLOCK_TOKENS,
    MAX_TOKENS,
    Cache,
    Queries,
    attend,
    decode_scales,
    encode_scales,
    error_bound,
    exp2_table,
    quantise_queries,
)
from edgerun_hw.overlay.attention_layout import (
    KvLayout,
    in_memory_order,
    pack_queries,
    run_attention,
    unpack_queries,
)

F32 = NDArray[np.float32]


def stored(rng: np.random.Generator, tokens: int, heads: int, dim: int) -> Cache:
    """Keys and values as the cache stores them: channels of different size, some large tokens."""
    sizes = np.exp(rng.normal(size=(2, 1, heads, dim)) * 0.5)
    vectors = rng.standard_normal((2, tokens, heads, dim)) * sizes
    vectors *= np.where(rng.random((2, tokens, 1, 1)) < 0.02, 5.0, 1.0)
    parts = [codec_named("int8").encode(part.astype(np.float32)) for part in vectors]
    scales = [encode_scales(part["scales"][..., 0]) for part in parts]
    return Cache(parts[0]["data"], parts[1]["data"], *scales)


def queries_for(
    rng: np.random.Generator, cache: Cache, limits: list[int], size: float = 1.0
) -> tuple[Queries, F32]:
    _, heads, dim = cache.keys.shape
    q = (rng.standard_normal((len(limits), heads, dim)) * size).astype(np.float32)
    first = np.zeros(len(limits), np.int64)
    return quantise_queries(q, dim**-0.5, first, np.array(limits), cache.value_scales), q


def by_float(q: F32, cache: Cache, queries: Queries) -> tuple[NDArray[np.float64], float]:
    """Exact attention to what is stored, and the largest magnitude of a score."""
    dim = q.shape[-1]
    keys = cache.keys * decode_scales(cache.key_scales).astype(np.float64)[..., None]
    values = cache.values * decode_scales(cache.value_scales).astype(np.float64)[..., None]
    scores = np.einsum("qhd,thd->qht", q.astype(np.float64), keys) * dim**-0.5
    index = np.arange(len(keys))
    seen = (queries.first[:, None] <= index) & (index < queries.limit[:, None])
    largest = float(np.abs(np.where(seen[:, None], scores, 0)).max())
    scores = np.where(seen[:, None], scores, -np.inf)
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    weights /= weights.sum(axis=-1, keepdims=True)
    return np.einsum("qht,thd->qhd", weights, values), largest


SHAPES = [(1, 2, 16), (64, 1, 64), (65, 3, 48), (512, 4, 96), (1024, 2, 96), (4096, 1, 128)]


@pytest.mark.parametrize("size", [0.1, 1.0, 4.0])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_outputs_are_within_a_thousandth_of_float_attention(shape, size):
    rng = np.random.default_rng([*shape, int(10 * size)])
    cache = stored(rng, *shape)
    tokens = shape[0]
    queries, q = queries_for(rng, cache, [tokens, max(1, tokens // 2), max(1, tokens - 7)], size)
    expected, _ = by_float(q, cache, queries)
    largest = np.abs(cache.values * decode_scales(cache.value_scales)[..., None]).max()
    assert np.abs(attend(queries, cache) - expected).max() <= 1e-3 * largest


@pytest.mark.parametrize("size", [1.0, 8.0, 40.0])
def test_outputs_are_within_the_stated_bound_however_large_scores_are(size):
    rng = np.random.default_rng(int(size))
    cache = stored(rng, 300, 2, 32)
    queries, q = queries_for(rng, cache, [300, 100], size)
    expected, largest_score = by_float(q, cache, queries)
    values = np.abs(cache.values * decode_scales(cache.value_scales)[..., None]).max()
    worst = np.abs(attend(queries, cache) - expected).max() / values
    assert worst <= error_bound(largest_score)


def test_many_small_weights_are_not_lost_beside_a_large_one():
    """4,095 tokens of weight 2**-17 each keep their 3 % beside one of weight 1."""
    tokens, dim = 4096, 16
    keys = np.zeros((tokens, 1, dim), np.int8)
    keys[0] = 127
    values = np.full((tokens, 1, dim), 100, np.int8)
    values[0] = 0
    scales = encode_scales(np.ones((tokens, 1), np.float32))
    cache = Cache(keys, values, scales, scales)
    q = np.full((1, 1, dim), 17 * np.log(2) / 127 / dim, np.float32)
    queries = quantise_queries(q, 1.0, np.array([0]), np.array([tokens]), scales)
    weight = 4095 * 2.0**-17
    assert attend(queries, cache) == pytest.approx(100 * weight / (1 + weight), rel=2e-3)


@given(seed=st.integers(0, 1 << 30), heads=st.integers(1, 3), units=st.integers(1, 3))
@settings(max_examples=30, deadline=None)
def test_what_a_query_does_not_see_does_not_matter(seed, heads, units):
    """Later tokens, other queries, and blocks before the first token change no bit."""
    rng = np.random.default_rng(seed)
    tokens = int(rng.integers(1, 300))
    cache = stored(rng, tokens, heads, 16 * units)
    first, limit = sorted(rng.integers(0, tokens + 1, 2))
    q = rng.standard_normal((2, heads, 16 * units)).astype(np.float32)
    bounds = np.array([first, 0]), np.array([limit, tokens])
    both = quantise_queries(q, 0.25, *bounds, cache.value_scales)
    alone = replace(
        both,
        **{name: getattr(both, name)[:1] for name in ("codes", "shifts", "top", "first", "limit")},
    )
    start = first // BLOCK_TOKENS * BLOCK_TOKENS
    part = Cache(*(getattr(cache, name)[start:limit] for name in Cache.__dataclass_fields__))
    moved = replace(alone, first=alone.first - start, limit=alone.limit - start)
    expected = attend(both, cache)[:1]
    assert np.array_equal(attend(alone, cache), expected)
    assert np.array_equal(attend(moved, part), expected)
    if first == limit:
        assert not expected.any()


def test_scales_keep_twelve_bits():
    rng = np.random.default_rng(0)
    scales = np.exp(rng.uniform(np.log(2e-7), np.log(200), 1000)).astype(np.float32)
    decoded = decode_scales(encode_scales(scales))
    assert np.abs(decoded / scales - 1).max() <= 2.0**-12
    assert np.array_equal(encode_scales(decoded), encode_scales(scales))
    edges = np.array([0, 1e-9, 0.99999, 1, 255], np.float32)
    assert decode_scales(encode_scales(edges)).tolist() == [0, 0, 1, 1, 255]


@pytest.mark.parametrize("scale", [300.0, -1.0, np.nan, np.inf])
def test_scales_beyond_the_format_are_refused(scale):
    with pytest.raises(ValueError, match="scale"):
        encode_scales(np.array([1.0, scale], np.float32))


@pytest.mark.parametrize("value", [np.nan, np.inf, 1e13])
def test_queries_beyond_the_format_are_refused(value):
    q = np.full((1, 1, 16), value, np.float32)
    with pytest.raises(ValueError, match="finite"):
        quantise_queries(q, 1.0, np.array([0]), np.array([1]), np.zeros((1, 1), np.uint16))


def test_more_tokens_than_the_sums_are_wide_for_are_refused():
    cache = Cache(
        np.zeros((MAX_TOKENS + 1, 1, 16), np.int8),
        np.zeros((MAX_TOKENS + 1, 1, 16), np.int8),
        *[np.zeros((MAX_TOKENS + 1, 1), np.uint16)] * 2,
    )
    queries, _ = queries_for(np.random.default_rng(0), cache, [1])
    with pytest.raises(ValueError, match="65537 tokens"):
        attend(queries, cache)


def test_the_table_is_two_to_its_index():
    table = exp2_table()
    assert table[0] == 1 << 15
    assert table[1024] == round(2**15.5)
    assert (np.diff(table) > 0).all()
    assert table[-1] < 1 << 16


# ---- layout


@pytest.mark.parametrize(("heads", "dim"), [(1, 16), (3, 48), (2, 256)])
def test_tokens_are_where_they_were_written_however_many_at_a_time(heads, dim):
    rng = np.random.default_rng(heads)
    layout, tokens = KvLayout(heads, dim), 150
    cache = stored(rng, tokens, heads, dim)
    ports = [np.zeros(layout.port_bytes(tokens), np.uint8) for _ in range(4)]
    for start, end in ((0, 100), (100, 101), (101, 150)):
        part = Cache(*(getattr(cache, name)[start:end] for name in Cache.__dataclass_fields__))
        layout.write(ports, start, part)
    read = layout.read(ports, tokens)
    for name in Cache.__dataclass_fields__:
        assert np.array_equal(getattr(read, name), getattr(cache, name)), name
    queries, _ = queries_for(rng, cache, [150, 33])
    packed = pack_queries(queries)
    assert packed.size == heads * 2 * layout.query_beats * 16
    for name in Queries.__dataclass_fields__:
        again = getattr(unpack_queries(packed, layout, 2), name)
        assert np.array_equal(again, getattr(queries, name)), name
    words = run_attention(layout, packed, 2, ports)
    assert np.array_equal(words.view(np.float32), in_memory_order(attend(queries, cache)))


def test_a_region_grows_at_its_end():
    """What lies in a region of few tokens lies at the same place in one of many."""
    layout = KvLayout(2, 16)
    cache = stored(np.random.default_rng(0), 64, 2, 16)
    few, many = ([np.zeros(layout.port_bytes(n), np.uint8) for _ in range(4)] for n in (64, 640))
    layout.write(few, 0, cache)
    layout.write(many, 0, cache)
    for small, large in zip(few, many, strict=True):
        assert np.array_equal(small, large[: small.size])
        assert not large[small.size :].any()


@pytest.mark.parametrize(
    ("heads", "dim", "words"),
    [
        (2, 24, "heads of 24 elements; the overlay takes multiples of 16"),
        (2, 272, "272 elements; the overlay takes 256 at most"),
        (33, 16, "33 heads"),
        (0, 16, "0 heads"),
        (32, 80, "32 heads of 80 elements; the overlay takes 2048 in all"),
    ],
)
def test_heads_that_do_not_fit_are_refused(heads, dim, words):
    with pytest.raises(ValueError, match=words):
        KvLayout(heads, dim)
