"""The store: what is written comes back, pages are given back, limits are told."""

import gc

import numpy as np
import pytest

from edgerun.errors import InputError, PromptError
from edgerun.state import (
    SequenceStore,
    attention_name,
    same_attention,
)
from edgerun.state.paged import PAGE_TOKENS
from tests.state.stores import ERRORS, append, contents, filled, pool_of, store_of


@pytest.mark.parametrize("codec", list(ERRORS))
def test_what_is_written_is_read_back(codec):
    store = store_of(codec)
    rng = np.random.default_rng(0)
    written = {}
    for _ in range(3):
        slot = store.open()
        store.reserve(slot, 150)
        for state in store.states:
            keys, values = rng.standard_normal((2, 150, 2, 8)).astype(np.float32)
            store.write_block(state.name, slot, 0, (keys[:70], values[:70]))
            store.write_block(state.name, slot, 70, (keys[70:], values[70:]))
            written[state.name, slot] = keys, values
    for (name, slot), block in written.items():
        for start, stop in ((0, 150), (63, 65), (10, 10)):
            arrays = store.read_block(name, slot, start, stop)
            for array, expected in zip(arrays, block, strict=True):
                part = expected[start:stop]
                limit = ERRORS[codec] * np.abs(part).max(axis=-1, keepdims=True, initial=0)
                assert array.shape == part.shape
                assert (np.abs(array - part) <= limit).all()


@pytest.mark.parametrize("codec", list(ERRORS))
@pytest.mark.parametrize("writer", ["source", "fork"])
@pytest.mark.parametrize("length", [None, 128, 100, 64, 1, 0])
def test_a_fork_shares_pages_until_one_of_the_two_writes(codec, writer, length):
    store = store_of(codec)
    source = filled(store, 130)
    before = contents(store, source)
    fork, shared_tokens = store.fork(source, length)
    assert shared_tokens == (130 if length is None else length)
    table, pages = pool_of(store).page_table, -(-shared_tokens // PAGE_TOKENS)
    assert (table[fork, :pages] == table[source, :pages]).all()
    assert (table[fork, pages:] == -1).all()
    np.testing.assert_array_equal(contents(store, fork), before[:, :, :shared_tokens])
    if writer == "fork":
        append(store, fork, shared_tokens + 70, seed=1)
        np.testing.assert_array_equal(contents(store, source), before)
        np.testing.assert_array_equal(
            contents(store, fork)[:, :, :shared_tokens], before[:, :, :shared_tokens]
        )
    else:
        store.rewind(source, 10)
        append(store, source, 140, seed=1)
        np.testing.assert_array_equal(contents(store, fork), before[:, :, :shared_tokens])


def test_a_fork_outlives_its_source():
    store = store_of()
    source = filled(store, 100)
    before = contents(store, source)
    fork, _ = store.fork(source)
    store.close(source)
    filled(store, 190, seed=3)
    np.testing.assert_array_equal(contents(store, fork), before)


def test_full_pages_stay_shared_when_a_fork_goes_on():
    store = store_of()
    source = filled(store, 130)
    fork, _ = store.fork(source)
    append(store, fork, 131, seed=1)
    table = pool_of(store).page_table
    same = table[fork] == table[source]
    assert same.tolist() == [True, True, False, True]  # the last is absent in both


@pytest.mark.parametrize("length", [-1, 101])
def test_a_fork_of_tokens_that_are_not_there_is_refused(length):
    store = store_of()
    source = filled(store, 100)
    with pytest.raises(InputError, match=f"fork of {length} tokens from a sequence of 100"):
        store.fork(source, length)
    assert store.room().slots == 2


def test_the_context_is_a_limit_with_both_counts():
    store = store_of(context=100)
    slot = store.open()
    store.reserve(slot, 100)
    with pytest.raises(PromptError, match="101 tokens do not fit the context of 100"):
        store.reserve(slot, 101)


def test_slots_run_out_with_a_count():
    store = store_of(slots=1)
    store.open()
    with pytest.raises(InputError, match="all 1 sequences"):
        store.open()


@pytest.mark.parametrize(("context", "slots"), [(0, 1), (1, 0), (-5, 1)])
def test_impossible_sizes_are_refused(context, slots):
    with pytest.raises(InputError, match="at least 1"):
        SequenceStore(same_attention(1, 1, 8), context, slots)


def test_two_layers_under_one_name_are_refused():
    state = same_attention(1, 1, 8)[0]
    with pytest.raises(InputError, match="two layers keep their state under one name"):
        SequenceStore([state, state], 64)


@pytest.mark.parametrize(
    ("name", "start", "stop"), [("nobody", 0, 1), (attention_name(0), -1, 3), ("", 0, 0)]
)
def test_blocks_outside_of_what_is_stored_are_refused(name, start, stop):
    store = store_of()
    slot = filled(store, 10)
    with pytest.raises(InputError, match="expected a layer of the model and positions from 0"):
        store.read_block(name, slot, start, stop)
    block = (np.zeros((1, 2, 8), np.float32),) * 2
    with pytest.raises(InputError, match="positions"):
        store.write_block(name, slot, start, block)


def test_nothing_is_written_where_nothing_is_reserved():
    store = store_of()
    slot, name = filled(store, 10), attention_name(0)
    pages = {key: array.copy() for key, array in pool_of(store).arrays.items()}
    for tokens in (60, 1000):
        with pytest.raises(InputError, match="not reserved"):
            store.write_block(name, slot, 10, (np.ones((tokens, 2, 8), np.float32),) * 2)
    with pytest.raises(InputError, match="expected"):
        store.write_block(name, slot, 3, (np.ones((1, 2, 8), np.float32), np.ones((1, 2, 4))))
    for key, array in pool_of(store).arrays.items():
        np.testing.assert_array_equal(array, pages[key])


def test_versions_change_with_what_was_there_and_are_never_equal():
    store = store_of()
    seen = set()

    def changed(slot, store=store):
        version = store.version(slot)
        assert version not in seen
        seen.add(version)

    first = store.open()
    changed(first)
    append(store, first, 70)
    before = store.version(first)
    append(store, first, 71)
    assert store.version(first) == before in seen  # it grew
    fork, _ = store.fork(first, 65)
    changed(fork)
    append(store, fork, 66)
    assert store.version(first) == before
    store.write_block(attention_name(0), first, 70, (np.ones((1, 2, 8), np.float32),) * 2)
    changed(first)
    store.rewind(first, 3)
    changed(first)
    store.close(first)
    changed(store.open())
    other = store_of()
    changed(other.open(), other)


def test_a_forgotten_owner_gives_its_pages_back():
    class Somebody:
        is_open = True

    store, owner = store_of(slots=1), Somebody()
    slot = store.open(owner)
    append(store, slot, 200)
    total = store.room()
    del owner
    gc.collect()
    assert (store.room().slots, store.room().pages) == (1, total.pages + 4)


def test_pages_that_an_interruption_lost_are_found_again():
    store = store_of(slots=2)
    first, second = filled(store, 130, seed=1), filled(store, 100)
    expected = contents(store, first)
    pool = pool_of(store)
    store.rewind(second, 0)
    pool._free.clear()  # taken from the list and put into no table
    pool._grown = len(pool._users)
    append(store, second, 200, seed=2)
    np.testing.assert_array_equal(contents(store, first), expected)
    for slot in (first, second):
        store.close(slot)
    assert store.room().pages == 2 * -(-200 // PAGE_TOKENS)


def test_a_page_is_not_copied_for_a_sequence_that_is_gone():
    class Somebody:
        is_open = True

    store, owner = store_of(slots=2), Somebody()
    slot = filled(store, 70)
    pages = pool_of(store).page_table[slot].copy()
    store.fork(slot, owner=owner)
    owner.is_open = False
    store.reserve(slot, 71)
    np.testing.assert_array_equal(pool_of(store).page_table[slot], pages)


def test_names_of_pages_are_forgotten_with_the_pages():
    store = store_of(slots=1)
    pages = pool_of(store).page_table.size
    for number in range(20 * pages):
        slot = filled(store, 2 * PAGE_TOKENS, ids=[number] * 2 * PAGE_TOKENS)
        store.close(slot)
    assert 1 < len(store._last_pages) <= 2 * pages + 1
