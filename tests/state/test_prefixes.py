"""Prefixes are found by their ids, in use and after, until their pages are needed."""

import numpy as np
import pytest

from tests.state.stores import append, contents, filled, pool_of, store_of


def test_a_closed_sequence_is_found_by_its_ids():
    store = store_of(context=1000)
    ids = list(range(500, 900))
    slot = filled(store, 300, ids=ids)
    expected = contents(store, slot)
    store.close(slot)
    again, length = store.match(ids[:250] + [1, 2, 3])
    assert length == 250  # 192 in full pages, and what the page after begins with
    np.testing.assert_array_equal(contents(store, again), expected[:, :, :250])


def test_the_last_page_is_found_though_it_is_not_full():
    store = store_of(context=1000)
    ids = list(range(300))
    slot = filled(store, 150, ids=ids)
    expected = contents(store, slot)
    store.close(slot)
    again, length = store.match(ids)
    assert length == 150
    np.testing.assert_array_equal(contents(store, again), expected)


def test_sequences_in_use_share_what_they_begin_with():
    store = store_of(context=1000)
    ids = list(range(300))
    first = filled(store, 200, ids=ids)
    before = contents(store, first)
    second, length = store.match([*ids[:128], 7, 8, 9])
    assert length == 128
    append(store, second, 131, seed=5, ids=[*ids[:128], 7, 8, 9])
    np.testing.assert_array_equal(contents(store, first), before)
    table = pool_of(store).page_table
    assert (table[first, :2] == table[second, :2]).all()


@pytest.mark.parametrize("ids", [[], [9], list(range(1, 200))])
def test_what_was_never_written_is_not_found(ids):
    store = store_of()
    store.close(filled(store, 150, ids=range(150)))
    assert store.match(ids)[1] == 0


def test_pages_that_are_written_over_are_not_found_any_more():
    store = store_of(context=1000)
    ids, others = list(range(200)), [*range(100), *range(900, 1000)]
    slot = filled(store, 200, ids=ids)
    assert store.rewind(slot, 100) == 100
    append(store, slot, 200, seed=9, ids=others)
    new = contents(store, slot)
    store.close(slot)
    matched, length = store.match(ids)
    assert length == 100
    store.close(matched)
    matched, length = store.match(others)
    assert length == 200
    np.testing.assert_array_equal(contents(store, matched), new)


def test_stored_prefixes_make_room_when_pages_are_needed():
    store = store_of(context=256, slots=2)
    store.close(filled(store, 256, ids=range(256)))
    store.close(filled(store, 256, ids=range(1000, 1256)))
    pages = store.room().pages
    assert pages == 8
    first, second = filled(store, 256, seed=3), filled(store, 256, seed=4)
    assert store.room().pages == 0
    assert contents(store, first).any()
    store.close(first), store.close(second)
    assert store.match(range(256))[1] == 0


def test_no_more_than_a_context_is_retained():
    store = store_of(context=256, slots=8)
    for number in range(20):
        store.close(filled(store, 256, ids=range(number * 1000, number * 1000 + 256)))
    assert pool_of(store)._grown <= 8
    assert store.match(range(19_000, 19_256))[1] == 256


@pytest.mark.parametrize("window", [3, 100, 0])
def test_what_many_sequences_begin_with_is_found_again_however_little_a_row_sees(window):
    store = store_of(context=400, slots=2, window=window)
    for number in range(6):
        ids = [*range(192), *range(1000 * number + 1000, 1000 * number + 1060)]
        slot, length = store.match(ids)
        assert length == (192 if number else 0)
        append(store, slot, len(ids), seed=number, ids=ids)
        store.close(slot)


def test_without_ids_nothing_is_retained():
    store = store_of(context=256)
    store.close(filled(store, 256))
    assert store.match([0] * 256)[1] == 0
