"""Pages that are really there: a context that does not fit, pages that run out."""

import mmap

import numpy as np
import pytest

import edgerun
from edgerun.errors import Full, InputError
from edgerun.llm import loading
from edgerun.llm.options import LoadOptions
from edgerun.model.bundle import open_bundle
from edgerun.state import (
    SequenceStore,
    same_attention,
)
from edgerun.state.capacity import affordable_context, sequence_bytes, token_bytes
from edgerun.state.memory import SPARE_BYTES, Memory
from edgerun.state.paged import PAGE_TOKENS
from tests.state.stores import LAYERS, append, contents, filled, store_of


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


def test_a_model_whose_context_does_not_fit_is_refused_before_it_is_compiled(monkeypatch):
    weights = loading.resident_bytes(open_bundle(loading.resolve(None)), LoadOptions())
    monkeypatch.setattr(loading, "available_memory", lambda: SPARE_BYTES + weights + (1 << 20))
    monkeypatch.setattr(
        "edgerun.llm.compiling.compile_plan", lambda *_: pytest.fail("it was compiled")
    )
    with pytest.raises(InputError, match=r"a context of 512 tokens takes .* of at most \d+ tokens"):
        edgerun.load(context=512, kv_cache="fp32")


@pytest.mark.parametrize("codec", ["fp16", "int8"])
def test_keys_and_values_begin_with_a_page_of_the_system(codec):
    states = same_attention(4, 8, 64, codec)
    arrays = SequenceStore(states, 40 * PAGE_TOKENS, 1).pool(states[0].name).arrays
    assert [name for name, array in arrays.items() if array.ctypes.data % mmap.PAGESIZE] == []
