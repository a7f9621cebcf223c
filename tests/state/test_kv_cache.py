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
    total = cache.room().pages
    opened = [cache.open() for _ in range(3)]
    for index, length in moves:
        sequence = opened[index]
        if length > cache.length(sequence):
            cache.reserve(sequence, length)
            cache.commit(sequence, length)
        else:
            cache.rewind(sequence, length)
        used = cache.page_table[cache.page_table >= 0].tolist()
        assert len(set(used)) == len(used)
        assert sorted(used + cache._free_pages) == list(range(total))
        for one in opened:
            pages = (cache.page_table[one] >= 0).sum()
            assert pages == -(-cache.length(one) // PAGE_TOKENS)
    for sequence in opened:
        cache.close(sequence)
    assert cache.room().pages == total


def filled(cache, length, seed=0):
    sequence = cache.open()
    cache.reserve(sequence, length)
    append(cache, sequence, 0, length, seed)
    return sequence


def append(cache, sequence, start, stop, seed):
    """Writes random tokens ``start .. stop - 1`` as an executable and the engine would."""
    cache.reserve(sequence, stop)
    rng = np.random.default_rng(seed)
    for layer in range(2):
        cache.write(layer, sequence, start, *rng.standard_normal((2, stop - start, 2, 8)))
    cache.commit(sequence, stop)


def contents(cache, sequence):
    length = cache.length(sequence)
    return np.array([cache.read(layer, sequence, length) for layer in range(2)])


@pytest.mark.parametrize("dtype", list(ERRORS))
@pytest.mark.parametrize("writer", ["source", "fork"])
@pytest.mark.parametrize("length", [None, 128, 100, 64, 1, 0])
def test_a_fork_shares_pages_until_one_of_the_two_writes(dtype, writer, length):
    cache = cache_of(dtype)
    source = filled(cache, 130)
    before = contents(cache, source)
    fork = cache.fork(source, length)[0]
    kept = 130 if length is None else length
    pages = -(-kept // PAGE_TOKENS)
    assert (cache.page_table[fork, :pages] == cache.page_table[source, :pages]).all()
    assert (cache.page_table[fork, pages:] == -1).all()
    np.testing.assert_array_equal(contents(cache, fork), before[:, :, :kept])
    if writer == "fork":
        append(cache, fork, kept, kept + 70, seed=1)
        np.testing.assert_array_equal(contents(cache, source), before)
        np.testing.assert_array_equal(contents(cache, fork)[:, :, :kept], before[:, :, :kept])
    else:
        cache.rewind(source, 10)
        append(cache, source, 10, 140, seed=1)
        np.testing.assert_array_equal(contents(cache, fork), before[:, :, :kept])


def test_a_fork_outlives_its_source():
    cache = cache_of()
    source = filled(cache, 100)
    before = contents(cache, source)
    fork = cache.fork(source)[0]
    cache.close(source)
    filled(cache, 190, seed=3)
    np.testing.assert_array_equal(contents(cache, fork), before)


def test_full_pages_stay_shared_when_a_fork_goes_on():
    cache = cache_of()
    source = filled(cache, 130)
    fork = cache.fork(source)[0]
    append(cache, fork, 130, 131, seed=1)
    same = cache.page_table[fork] == cache.page_table[source]
    assert same.tolist() == [True, True, False, True]  # the last is absent in both


@pytest.mark.parametrize("length", [-1, 101])
def test_a_fork_of_tokens_that_are_not_there_is_refused(length):
    cache = cache_of()
    source = filled(cache, 100)
    with pytest.raises(InputError, match=f"fork of {length} tokens from a sequence of 100"):
        cache.fork(source, length)
    assert cache.room().slots == 2


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3), st.integers(0, 200)), max_size=40))
@settings(max_examples=60, deadline=None)
def test_forks_lose_no_pages_and_keep_their_contents(moves):
    cache = cache_of(sequences=4)
    total, opened = cache.room().pages, {}
    for number, (kind, which, length) in enumerate(moves):
        if not opened or (kind == 0 and len(opened) < 4):
            sequence = filled(cache, length, seed=number)
        elif kind == 1 and len(opened) < 4:
            source = list(opened)[which % len(opened)]
            sequence = cache.fork(source, min(length, cache.length(source)))[0]
        else:
            sequence = list(opened)[which % len(opened)]
            cache.rewind(sequence, min(length, cache.length(sequence)))
            if kind == 3:
                cache.close(sequence)
                del opened[sequence]
                continue
            append(cache, sequence, cache.length(sequence), max(length, 1), seed=number)
        opened[sequence] = contents(cache, sequence)
        for one, expected in opened.items():
            np.testing.assert_array_equal(contents(cache, one), expected)
        users = np.bincount(cache.page_table[cache.page_table >= 0], minlength=total)
        np.testing.assert_array_equal(users, cache._page_users)
        assert sorted(cache._free_pages) == np.flatnonzero(users == 0).tolist()
    for sequence in opened:
        cache.close(sequence)
    assert cache.room().pages == total


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


def test_pages_that_an_interruption_lost_are_found_again():
    cache = cache_of(sequences=2)
    first, second = filled(cache, 130, seed=1), cache.open()
    expected = contents(cache, first)
    cache._free_pages.clear()  # taken from the list and put into no table
    append(cache, second, 0, 200, seed=2)
    np.testing.assert_array_equal(contents(cache, first), expected)
    for sequence in (first, second):
        cache.close(sequence)
    assert cache.room().pages == 2 * -(-200 // PAGE_TOKENS)
