"""States of fixed size, alone and beside attention, with a toy op that counts."""

from dataclasses import replace

import numpy as np
import pytest

from edgerun.errors import Full, InputError
from edgerun.state import (
    RecurrentState,
    SequenceStore,
    attention_name,
    same_attention,
)
from edgerun.state.capacity import fixed_bytes, sequence_bytes
from edgerun.state.copies import Copies
from edgerun.state.memory import Memory
from edgerun.state.spec import RecurrentArray

COUNTER = RecurrentState("counter", (RecurrentArray("sum", (2,)), RecurrentArray("last", (3, 1))))


def count(store, slot, ids, *, commit=True, before=()):
    """A toy op: keeps the sum of all ids, and the last three; ``before`` are those so far."""
    start = store.length(slot)
    store.reserve(slot, start + len(ids))
    total, last = (array.copy() for array in store.read_block("counter", slot, start, start))
    total += sum(ids)
    last = np.concatenate([last[:, 0], np.array(ids, np.float32)])[-3:, None]
    store.write_block("counter", slot, start, (total, last))
    if commit:
        store.commit(slot, start + len(ids), [*before, *ids])
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
    fork, shared_tokens = store.fork(slot, 25)
    assert shared_tokens == 20
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


def test_memory_for_two_states_of_every_sequence_is_counted():
    states = [*same_attention(1, 1, 8, "fp32"), COUNTER]
    fixed, page = 2 * 4 * (2 + 3), 2 * 4 * 8 * 64
    assert sequence_bytes(states, 64) == fixed + page
    assert fixed_bytes(states) == fixed
    for free, message in [(fixed + page - 1, "keys, values and states"), (fixed, "any length")]:
        memory = Memory(lambda free=free: free, spare_bytes=0)
        with pytest.raises(InputError, match=message):
            SequenceStore(states, 64, 1, memory=memory)
    SequenceStore(states, 64, 1, memory=Memory(lambda: fixed + page, spare_bytes=0))


def test_a_commit_that_was_cut_off_is_ended_by_what_comes_next():
    store = SequenceStore([COUNTER], 1000, 1)
    slot = store.open()
    count(store, slot, [1, 2])
    count(store, slot, [50], commit=False)
    store._lengths[slot] = 3  # as far as it came before Ctrl-C
    assert count(store, slot, [4]) == 57


def test_layers_that_a_call_has_not_written_stay_as_they_are():
    store = SequenceStore([COUNTER, replace(COUNTER, name="other")], 1000, 1)
    slot, ones = store.open(), (np.ones(2, np.float32), np.ones((3, 1), np.float32))
    store.reserve(slot, 1)
    for name in ("counter", "other"):
        store.write_block(name, slot, 0, ones)
    store.commit(slot, 1)
    copy = store.copied()
    count(store, slot, [4])
    assert [store.read_block(name, slot, 2, 2)[0][0] for name in ("counter", "other")] == [5, 1]
    assert copy.read_block("counter", slot, 1, 1)[0][0] == 1  # whatever the original does


def test_a_state_without_a_place_is_not_written():
    store = SequenceStore([COUNTER], 10, 1)
    block = (np.zeros(2), np.zeros((3, 1)))
    with pytest.raises(InputError, match="not reserved"):
        store.write_block("counter", store.open(), 0, block)
    with pytest.raises(InputError, match="keeps keys and values"):
        store.pool("counter")
    with pytest.raises(InputError, match="keeps a state of fixed size"):
        store.recurrent("elsewhere")


@pytest.mark.parametrize("error", [MemoryError, OSError])
def test_large_states_lie_on_huge_pages_where_there_are_such(error):
    asked = []

    def zeroed(nbytes):
        if asked:
            raise error
        asked.append(nbytes)
        return np.zeros(nbytes, np.uint8)

    memory = Memory(on_huge_pages=zeroed)
    arrays = (RecurrentArray("small", (8,)), RecurrentArray("large", (1 << 18,)))
    states = [RecurrentState("state", arrays)]
    SequenceStore(states, 10, 2, memory=memory)
    assert asked == [2 * 2 << 20]  # two halves of a MiB for two sequences
    with pytest.raises(InputError, match="no memory for the states of 2 sequences"):
        SequenceStore(states, 10, 2, memory=memory)


def hybrid(slots=3, memory=None):
    return SequenceStore([*same_attention(1, 1, 8, "fp32"), COUNTER], 1000, slots, memory=memory)


def matched(store, ids):
    """How many ids are found, and the sum of those; the slot is closed again."""
    slot, length = store.match(ids)
    total = store.read_block("counter", slot, length, length)[0][0]
    store.close(slot)
    return length, total


def test_states_behind_pages_and_behind_closed_sequences_are_found_by_ids():
    store, ids = hybrid(), [1 + place % 7 for place in range(300)]
    slot = store.open()
    for start, stop in ((0, 64), (64, 128), (128, 192), (192, 200)):
        count(store, slot, ids[start:stop], before=ids[:start])
    assert matched(store, [*ids[:150], 9]) == (128, sum(ids[:128]))
    assert matched(store, [*ids[:100], 9]) == (64, sum(ids[:64]))
    assert matched(store, [*ids[:198], 9]) == (128, sum(ids[:128]))  # 192 is no power of two
    assert store.rewind(slot, 199) == 128
    store.close(slot)
    others, slot = [3 + place % 5 for place in range(80)], store.open()
    count(store, slot, others[:64])
    count(store, slot, others[64:70], before=others[:64])
    store.close(slot)
    assert matched(store, others) == (70, sum(others[:70]))
    assert matched(store, [*others[:69], 9]) == (64, sum(others[:64]))


def test_a_state_is_not_found_by_ids_that_lead_to_another():
    store, ids = hybrid(), [1 + place % 7 for place in range(300)]
    slot = store.open()
    count(store, slot, ids[:70])
    store.reserve(slot, 75)
    store.commit(slot, 75)  # of tokens that nobody knows
    store.close(slot)
    assert matched(store, ids) == (0, 0)


@pytest.mark.parametrize("ends", [lambda store, slot: store.room(), SequenceStore.rewind])
@pytest.mark.parametrize("place", ["forget", "_set"])
def test_a_state_that_ctrl_c_left_half_gone_is_not_found(monkeypatch, ends, place):
    store, ids = hybrid(), [1 + place % 7 for place in range(70)]
    other, slot = store.open(), store.open()
    count(store, other, [100])
    count(store, slot, ids[:60])
    store.checkpoint(slot)
    count(store, slot, ids[60:], before=ids[:60])
    is_cut = ends is SequenceStore.rewind
    if not is_cut:
        store.close(slot)

    def interrupted(*_, **__):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(Copies if place == "forget" else SequenceStore, place, interrupted)
        ends(store, slot, *[65] * is_cut)
    store.close(slot)  # as one is whose sequence is gone
    length, total = matched(store, [*ids, 1])
    assert total == sum(ids[:length])


def test_copies_of_states_are_the_first_to_go_where_memory_is_scarce():
    states = [*same_attention(1, 1, 8, "fp32"), COUNTER]
    need, free, ids = sequence_bytes(states, 1000), [1 << 40], [1] * 128
    memory = Memory(lambda: free[0], spare_bytes=0)
    store = hybrid(memory=memory)
    slot = store.open()
    count(store, slot, ids)
    store.checkpoint(slot)
    count(store, slot, [1], before=ids)
    store.close(slot)
    assert matched(store, [*ids, 1, 2]) == (129, 129)
    free[0] = need - 1
    memory.look()  # as whoever takes a page does
    store.room()
    assert matched(store, [*ids, 1, 2]) == (0, 0)
    slot = store.open()
    count(store, slot, ids)
    store.checkpoint(slot)
    count(store, slot, [1], before=ids)
    assert store.rewind(slot, 128) == 0


def test_without_memory_nothing_is_adopted_and_copies_are_given_back():
    free, ids = [lambda: 1 << 40], [1] * 128
    memory = Memory(lambda: free[0](), spare_bytes=0)
    store = hybrid(memory=memory)
    slot = store.open()
    count(store, slot, ids)
    (arrays,) = store._recurrent
    assert len(arrays._prefixes) == 1
    free[0] = lambda: 0 if len(arrays._prefixes) else 1 << 40
    other, length = store.match([*ids, 1])
    assert (length, store.length(other)) == (0, 0)
    assert (store._pools[0].page_table[other] < 0).all()  # nobody else has to copy them
    count(store, other, [5])  # the copy makes room for the state
    assert not len(arrays._prefixes)
    free[0] = lambda: 0
    memory.look()
    with pytest.raises(Full):
        count(store, store.open(), [5])


def test_sequences_in_any_order_have_the_states_of_their_ids():
    rng, store = np.random.default_rng(0), hybrid(4)
    held, found = {}, 0
    for _ in range(600):
        begin = [1 + place % 5 for place in range(int(rng.choice([0, 64, 130, 200])))]
        what = rng.integers(6)
        slot = int(rng.choice(list(held))) if held else -1
        if what == 0 and len(held) < 4:
            ids = [*begin, *rng.integers(1, 4, 3).tolist()]
            slot, length = store.match(ids[:-1])
            held[slot], found = ids[:length], found + bool(length)
        elif slot < 0 or len(held[slot]) > 700:
            for each in list(held):
                store.close(each)
                del held[each]
        elif what == 1 and len(held) < 4:
            other, length = store.fork(slot, int(rng.integers(len(held[slot]) + 1)))
            held[other] = held[slot][:length]
        elif what == 2:
            length = store.rewind(slot, int(rng.integers(len(held[slot]) + 1)))
            del held[slot][length:]
        elif what == 3:
            store.close(slot)
            del held[slot]
        elif what == 4:
            store.checkpoint(slot)
        else:
            rows = int(rng.choice([1, 64 - len(held[slot]) % 64, 128 - len(held[slot]) % 128]))
            kind = int(rng.choice([1, 1, 1, 2]))
            more = [kind + place % 5 for place in range(len(held[slot]), len(held[slot]) + rows)]
            count(store, slot, [9], commit=False)  # a call that fails
            count(store, slot, more, before=held[slot])
            held[slot] += more
        for each, ids in held.items():
            total, last = store.read_block("counter", each, len(ids), len(ids))
            assert total[0] == sum(ids)
            assert last[:, 0].tolist() == [0, 0, 0, *ids][-3:]
    assert found > 20


def test_a_fork_without_memory_leaves_everything_as_it_was():
    free = [1 << 40]
    memory = Memory(lambda: free[0], spare_bytes=0)
    store = hybrid(memory=memory, slots=2)
    slot = store.open()
    count(store, slot, [1] * 100)
    pages = store.room([slot]).pages
    free[0] = 0
    memory.look()
    with pytest.raises(Full, match="room for the states of 1 sequences"):
        store.fork(slot)
    free[0] = 1 << 40
    other = store.open()  # of two slots, so the fork has none
    assert store.room([slot, other]).pages == pages
    assert count(store, other, [5]) == 5
