"""The store: what is written comes back, pages are given back, limits are told."""

import gc

import numpy as np
import pytest

from edgerun.errors import Full, InputError, PromptError
from edgerun.state import (
    AttentionState,
    Batch,
    RecurrentState,
    SequenceStore,
    attention_name,
    same_attention,
)
from edgerun.state.capacity import affordable_context, sequence_bytes, token_bytes
from edgerun.state.memory import Memory
from edgerun.state.paged import PAGE_TOKENS
from edgerun.state.spec import RecurrentArray

ERRORS = {"fp32": 0.0, "fp16": 5e-4, "int8": 1 / 250, "int4": 1 / 13.9}
LAYERS = 2


def store_of(codec="fp32", context=200, slots=3, window=0, **options):
    return SequenceStore(same_attention(LAYERS, 2, 8, codec, window), context, slots, **options)


def append(store, slot, stop, seed=0, ids=()):
    """Writes random tokens up to ``stop`` as a program and the engine would."""
    start = store.length(slot)
    store.reserve(slot, stop)
    rng = np.random.default_rng(seed)
    for state in store.states:
        block = rng.standard_normal((2, stop - start, state.kv_heads, state.key_dim))
        store.write_block(state.name, slot, start, tuple(block.astype(np.float32)))
    store.commit(slot, stop, ids)


def filled(store, length, seed=0, ids=()):
    slot = store.open()
    append(store, slot, length, seed, ids)
    return slot


def contents(store, slot, start=0):
    blocks = [store.read_block(s.name, slot, start, store.length(slot)) for s in store.states]
    return np.array(blocks)


def pool_of(store):
    return store.pool(store.states[0].name)


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
            found = store.read_block(name, slot, start, stop)
            for one, expected in zip(found, block, strict=True):
                part = expected[start:stop]
                limit = ERRORS[codec] * np.abs(part).max(axis=-1, keepdims=True, initial=0)
                assert one.shape == part.shape
                assert (np.abs(one - part) <= limit).all()


@pytest.mark.parametrize("codec", list(ERRORS))
@pytest.mark.parametrize("writer", ["source", "fork"])
@pytest.mark.parametrize("length", [None, 128, 100, 64, 1, 0])
def test_a_fork_shares_pages_until_one_of_the_two_writes(codec, writer, length):
    store = store_of(codec)
    source = filled(store, 130)
    before = contents(store, source)
    fork, kept = store.fork(source, length)
    assert kept == (130 if length is None else length)
    table, pages = pool_of(store).page_table, -(-kept // PAGE_TOKENS)
    assert (table[fork, :pages] == table[source, :pages]).all()
    assert (table[fork, pages:] == -1).all()
    np.testing.assert_array_equal(contents(store, fork), before[:, :, :kept])
    if writer == "fork":
        append(store, fork, kept + 70, seed=1)
        np.testing.assert_array_equal(contents(store, source), before)
        np.testing.assert_array_equal(contents(store, fork)[:, :, :kept], before[:, :, :kept])
    else:
        store.rewind(source, 10)
        append(store, source, 140, seed=1)
        np.testing.assert_array_equal(contents(store, fork), before[:, :, :kept])


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


def test_versions_change_with_the_content_and_are_never_equal():
    store = store_of()
    seen = set()

    def changed(slot):
        version = store.version(slot)
        assert version not in seen
        seen.add(version)

    first = store.open()
    changed(first)
    append(store, first, 70)
    changed(first)
    fork, _ = store.fork(first, 65)
    changed(fork)
    before = store.version(first)
    append(store, fork, 66)
    changed(fork)
    assert store.version(first) == before
    store.rewind(first, 3)
    changed(first)
    store.close(first)
    changed(store.open())


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


# --- layers that differ


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
        for found, expected in zip(store.read_block(name, slot, 0, 80), block, strict=True):
            np.testing.assert_array_equal(found, expected)


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
    fork, kept = store.fork(slot, 300)
    assert kept == 0
    _, kept = store.fork(slot, 630)
    assert kept == 630


def filled_mixed(store, length):
    slot = store.open()
    store.reserve(slot, length)
    store.commit(slot, length)
    return slot


# --- prefixes


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
    found, length = store.match(ids)
    assert length == 100
    store.close(found)
    found, length = store.match(others)
    assert length == 200
    np.testing.assert_array_equal(contents(store, found), new)


def test_stored_prefixes_make_room_when_pages_are_needed():
    store = store_of(context=256, slots=2)
    store.close(filled(store, 256, ids=range(256)))
    store.close(filled(store, 256, ids=range(1000, 1256)))
    pages = store.room().pages
    assert pages == 8
    one, two = filled(store, 256, seed=3), filled(store, 256, seed=4)
    assert store.room().pages == 0
    assert contents(store, one).any()
    store.close(one), store.close(two)
    assert store.match(range(256))[1] == 0


def test_no_more_than_a_context_is_retained():
    store = store_of(context=256, slots=8)
    for number in range(20):
        store.close(filled(store, 256, ids=range(number * 1000, number * 1000 + 256)))
    assert pool_of(store)._grown <= 8
    assert store.match(range(19_000, 19_256))[1] == 256


def test_without_ids_nothing_is_retained():
    store = store_of(context=256)
    store.close(filled(store, 256))
    assert store.match([0] * 256)[1] == 0


# --- memory


class Machine:
    """Memory that is taken by the pages of a store."""

    def __init__(self, nbytes):
        self.free = nbytes

    def memory(self):
        return Memory(lambda: self.free, spare_bytes=0)


def test_a_context_that_memory_cannot_hold_is_refused_with_what_fits():
    states = same_attention(4, 2, 8, "fp16")
    assert token_bytes(states) == 4 * 2 * 2 * 8 * 2
    nbytes = 10 * PAGE_TOKENS * token_bytes(states)
    with pytest.raises(InputError, match="one of at most 640 tokens") as raised:
        SequenceStore(states, 641, 1, memory=Machine(nbytes).memory())
    assert "641 tokens" in str(raised.value)
    assert affordable_context(states, 10_000, nbytes) == 640
    assert sequence_bytes(states, 640) == nbytes
    SequenceStore(states, 640, 1, memory=Machine(nbytes).memory())


def test_windowed_layers_fit_where_others_do_not():
    nbytes = sequence_bytes(same_attention(4, 2, 8, "fp16"), 2000)
    states = same_attention(4, 2, 8, "fp16", 128)
    SequenceStore(states, 100_000, 1, memory=Machine(nbytes).memory())


def test_pages_end_before_memory_does():
    machine = Machine(10 * PAGE_TOKENS * token_bytes(same_attention(LAYERS, 2, 8, "fp32")))
    store = store_of(context=640, slots=4, memory=machine.memory())
    first = filled(store, 300)
    expected = contents(store, first)
    machine.free = PAGE_TOKENS * token_bytes(store.states)  # somebody else takes the rest
    second = store.open()
    append(store, second, 64, seed=2)
    machine.free = 0
    with pytest.raises(Full, match=r"all 6 pages .* are in use"):
        store.reserve(second, 65)
    np.testing.assert_array_equal(contents(store, first), expected)
    assert store.length(second) == 64
    store.close(first)  # its pages were never named, so they are free
    append(store, second, 300, seed=3)


def test_room_counts_pages_that_are_really_there():
    page = PAGE_TOKENS * token_bytes(same_attention(LAYERS, 2, 8, "fp32"))
    machine = Machine(100 * page)
    store = store_of(context=640, slots=4, memory=machine.memory())
    room = store.room()
    assert (room.slots, room.pages, room.page_tokens) == (4, 40, PAGE_TOKENS)
    assert [room.pages_for(*each) for each in ((0, 1), (64, 65), (63, 64), (10, 5))] == [1, 1, 0, 0]
    machine.free = 3 * page
    filled(store, 64)
    machine.free = 2 * page
    assert store.room().pages == 2


# --- recurrent states


COUNTER = RecurrentState("counter", (RecurrentArray("sum", (2,)), RecurrentArray("last", (3, 1))))


def count(store, slot, ids, *, commit=True):
    """A toy op: keeps the sum of all ids, and the last three."""
    start = store.length(slot)
    store.reserve(slot, start + len(ids))
    total, last = (array.copy() for array in store.read_block("counter", slot, start, start))
    total += sum(ids)
    last = np.concatenate([last[:, 0], np.array(ids, np.float32)])[-3:, None]
    store.write_block("counter", slot, start, (total, last))
    if commit:
        store.commit(slot, start + len(ids), ids)
    return total[0]


def test_a_recurrent_state_goes_back_to_checkpoints_only():
    store = SequenceStore([COUNTER], 1000, 2)
    slot = store.open()
    assert store.room().page_tokens == 0
    count(store, slot, [1, 2, 3])
    store.checkpoint(slot)
    count(store, slot, [10] * 5)
    assert store.rewind(slot, 8) == 8
    assert store.rewind(slot, 7) == 3
    total, last = store.read_block("counter", slot, 3, 3)
    assert total.tolist() == [6, 6]
    assert last[:, 0].tolist() == [1, 2, 3]
    assert store.rewind(slot, 2) == 0
    assert not store.read_block("counter", slot, 0, 0)[0].any()


def test_a_call_that_fails_changes_no_recurrent_state():
    store = SequenceStore([COUNTER], 1000, 1)
    slot = store.open()
    count(store, slot, [1, 2])
    count(store, slot, [50], commit=False)
    assert count(store, slot, [4]) == 7


def test_a_hybrid_model_goes_back_to_where_all_layers_can():
    store = SequenceStore([*same_attention(1, 1, 8, "fp32"), COUNTER], 1000, 3)
    slot, name = store.open(), attention_name(0)
    for stop in (10, 20, 30):
        rows = np.full((10, 1, 8), stop, np.float32)
        store.reserve(slot, stop)
        store.write_block(name, slot, stop - 10, (rows, rows))
        count(store, slot, [1] * 10)
        if stop == 20:
            store.checkpoint(slot)
    fork, kept = store.fork(slot, 25)
    assert kept == 20
    assert store.read_block("counter", fork, 20, 20)[0][0] == 20
    assert store.rewind(slot, 29) == 20
    assert store.read_block(name, slot, 0, 20)[0][:, 0, 0].tolist() == [10] * 10 + [20] * 10
    store.close(slot)
    assert store.match([1] * 20)[1] == 0  # nothing of the recurrent layer is found by ids


def test_only_a_few_checkpoints_are_kept():
    store = SequenceStore([COUNTER], 1000, 1)
    slot = store.open()
    for _ in range(10):
        count(store, slot, [1])
        store.checkpoint(slot)
    assert store.rewind(slot, 9) == 9
    assert store.rewind(slot, 6) == 0


@pytest.mark.parametrize("block", [(np.zeros(2),), (np.zeros(3), np.zeros((3, 1)))])
def test_arrays_of_another_shape_are_refused(block):
    store = SequenceStore([COUNTER], 10, 1)
    with pytest.raises(InputError, match=r"expected \[\(2,\), \(3, 1\)\]"):
        store.write_block("counter", store.open(), 0, block)


def test_batches_join_with_their_logit_rows():
    parts = [Batch.of([1, 2, 3], 0, 0), Batch.of([4], 9, 2), Batch.of([5, 6], 0, 1, logits="all")]
    joined = Batch.join(parts)
    assert joined.ids.tolist() == [1, 2, 3, 4, 5, 6]
    assert joined.positions.tolist() == [0, 1, 2, 9, 0, 1]
    assert joined.sequences.tolist() == [0, 0, 0, 2, 1, 1]
    assert joined.logit_rows.tolist() == [2, 3, 4, 5]
    assert Batch.of([1, 2], 0, 0, logits="none").logit_rows.size == 0
