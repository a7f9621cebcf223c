"""The paged cache: what is written comes back, pages are given back, limits are told."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgerun.errors import InputError, PromptError
from edgerun.state import Batch, CacheSpec, KVCache
from edgerun.state.kv_cache import PAGE_TOKENS

ERRORS = {"fp32": 0.0, "fp16": 5e-4, "int8": 1 / 127}


def cache_of(dtype="fp32", context=200, sequences=3):
    return KVCache(CacheSpec(2, 2, 8, dtype), context, sequences)


@pytest.mark.parametrize("dtype", list(ERRORS))
def test_what_is_written_is_read_back(dtype):
    cache = cache_of(dtype)
    rng = np.random.default_rng(0)
    written = {}
    for _ in range(3):
        sequence = cache.open()
        cache.reserve(sequence, 150)
        for layer in range(2):
            keys, values = rng.standard_normal((2, 150, 2, 8)).astype(np.float32)
            cache.write(layer, sequence, 0, keys[:70], values[:70])
            cache.write(layer, sequence, 70, keys[70:], values[70:])
            written[layer, sequence] = keys, values
    for (layer, sequence), (keys, values) in written.items():
        for found, expected in zip(cache.read(layer, sequence, 150), (keys, values), strict=True):
            limit = ERRORS[dtype] * np.abs(expected).max(axis=-1, keepdims=True)
            assert (np.abs(found - expected) <= limit).all()


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 200)), max_size=30))
@settings(max_examples=60, deadline=None)
def test_pages_are_neither_lost_nor_shared(moves):
    cache = cache_of()
    total = len(cache._free_pages)
    opened = [cache.open() for _ in range(3)]
    for index, length in moves:
        sequence = opened[index]
        if length > cache.lengths[sequence]:
            cache.reserve(sequence, length)
            cache.extend(sequence, length)
        else:
            cache.truncate(sequence, length)
        used = cache.page_table[cache.page_table >= 0].tolist()
        assert len(set(used)) == len(used)
        assert sorted(used + cache._free_pages) == list(range(total))
        for one in opened:
            pages = (cache.page_table[one] >= 0).sum()
            assert pages == -(-int(cache.lengths[one]) // PAGE_TOKENS)
    for sequence in opened:
        cache.close(sequence)
    assert len(cache._free_pages) == total


def test_the_context_is_a_limit_with_both_counts():
    cache = cache_of(context=100)
    sequence = cache.open()
    cache.reserve(sequence, 100)
    with pytest.raises(PromptError, match="101 tokens do not fit the context of 100"):
        cache.reserve(sequence, 101)


def test_sequences_run_out_with_a_count():
    cache = cache_of(sequences=1)
    cache.open()
    with pytest.raises(InputError, match="all 1 sequences"):
        cache.open()


@pytest.mark.parametrize(("context", "sequences"), [(0, 1), (1, 0), (-5, 1)])
def test_impossible_sizes_are_refused(context, sequences):
    with pytest.raises(InputError, match="at least 1"):
        KVCache(CacheSpec(1, 1, 8), context, sequences)


def test_batches_join_with_their_logit_rows():
    parts = [Batch.of([1, 2, 3], 0, 0), Batch.of([4], 9, 2), Batch.of([5, 6], 0, 1, logits="all")]
    joined = Batch.join(parts)
    assert joined.ids.tolist() == [1, 2, 3, 4, 5, 6]
    assert joined.positions.tolist() == [0, 1, 2, 9, 0, 1]
    assert joined.sequences.tolist() == [0, 0, 0, 2, 1, 1]
    assert joined.logit_rows.tolist() == [2, 3, 4, 5]
    assert Batch.of([1, 2], 0, 0, logits="none").logit_rows.size == 0
