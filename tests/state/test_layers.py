"""Layers that differ: pools of their own, and windows that pass on."""

import numpy as np

from edgerun.state import (
    AttentionState,
    SequenceStore,
    attention_name,
)
from edgerun.state.paged import PAGE_TOKENS
from tests.state.stores import append, contents, filled, pool_of, store_of


def mixed(window=100):
    return [
        AttentionState("full", 2, 8, 8, 0, "fp32"),
        AttentionState("near", 1, 16, 16, window, "fp32"),
        AttentionState("wide", 2, 8, 8, 0, "fp32"),
        AttentionState("small", 2, 8, 4, 0, "fp16"),
    ]


def test_layers_of_equal_geometry_share_a_pool_and_others_do_not():
    store = SequenceStore(mixed(), 500, 2)
    assert store.pool("full") is store.pool("wide")
    assert len({id(store.pool(state.name)) for state in store.states}) == 3
    slot = store.open()
    store.reserve(slot, 80)
    rng = np.random.default_rng(0)
    blocks = {
        state.name: tuple(
            rng.standard_normal((80, state.kv_heads, dim)).astype(np.float16).astype(np.float32)
            for dim in (state.key_dim, state.value_dim)
        )
        for state in store.states
    }
    for name, block in blocks.items():
        store.write_block(name, slot, 0, block)
    store.commit(slot, 80)
    for name, block in blocks.items():
        for array, expected in zip(store.read_block(name, slot, 0, 80), block, strict=True):
            np.testing.assert_array_equal(array, expected)


def test_values_that_are_keys_take_no_memory():
    tied, apart = (
        AttentionState("a", 1, 8, 8, 0, "int8", values_are_keys=is_tied)
        for is_tied in (True, False)
    )
    stores = [SequenceStore([state], 200, 1) for state in (tied, apart)]
    pools = [store.pool("a") for store in stores]
    assert 2 * pools[0].page_bytes == pools[1].page_bytes
    assert pools[0].arrays.keys() == {"key_data", "key_scales"}
    fields = pools[0].fields("a")
    assert fields["value_data"] == fields["key_data"]
    assert fields["value_scales"] == fields["key_scales"]
    rows = np.random.default_rng(0).standard_normal((100, 1, 8)).astype(np.float32)
    for store in stores:
        slot = store.open()
        store.reserve(slot, 100)
        store.write_block("a", slot, 0, (rows, rows))
        store.commit(slot, 100)
    expected = stores[1].read_block("a", 0, 10, 90)
    for tied_array, apart_array in zip(stores[0].read_block("a", 0, 10, 90), expected, strict=True):
        np.testing.assert_array_equal(tied_array, apart_array)


def test_windowed_layers_leave_pages_that_no_row_sees_any_more():
    store = store_of(context=3000, slots=2, window=100)
    slot = filled(store, 2500)
    held = np.flatnonzero(pool_of(store).page_table[slot] >= 0)
    first_seen = (2500 + 1 - 100) // PAGE_TOKENS
    assert held.tolist() == list(range(first_seen - 1, 40))
    block = store.read_block(attention_name(0), slot, 0, 2500)
    assert not block[0][:2000].any()
    assert block[0][2500 - 100 :].any()
    for length in range(2501, 2900, 37):
        append(store, slot, length)
    assert (pool_of(store).page_table[slot] >= 0).sum() <= 4
    assert pool_of(store)._grown <= 42


def test_a_window_that_has_passed_on_is_not_gone_back_to():
    store = store_of(context=1000, slots=2, window=100)
    slot = filled(store, 700)
    assert store.rewind(slot, 690) == 690
    assert store.rewind(slot, 300) == 0
    assert store.length(slot) == 0


def test_a_window_is_gone_back_to_while_its_pages_can_be_found():
    store = store_of(context=1000, slots=2, window=100)
    ids = list(range(700))
    slot = store.open()
    for stop in (200, 350, 500, 600):
        append(store, slot, stop, seed=stop, ids=ids)
    seen = contents(store, slot)[:, :, 550:]
    assert store.rewind(slot, 560) == 560
    np.testing.assert_array_equal(contents(store, slot)[:, :, 550:], seen[:, :, :10])


def test_a_fork_of_windowed_layers_begins_where_both_can():
    store = SequenceStore(mixed(window=64), 1000, 3)
    slot = filled_mixed(store, 640)
    fork, shared_tokens = store.fork(slot, 300)
    assert shared_tokens == 0
    _, shared_tokens = store.fork(slot, 630)
    assert shared_tokens == 630


def filled_mixed(store, length):
    slot = store.open()
    store.reserve(slot, length)
    store.commit(slot, length)
    return slot
