"""The store that models run on, where memory has room for few pages."""

from __future__ import annotations

import pytest

from edgerun.engine.chooser.params import SamplingParams
from edgerun.engine.engine import Engine
from edgerun.state import AttentionState, SequenceStore, State, attention_name
from edgerun.state.capacity import largest_call, sequence_bytes, with_long_calls
from edgerun.state.memory import Memory
from tests.engine.test_engine import expected, together
from tests.support import fakes

CONTEXT = 256  # four pages
PAGE_BYTES = sequence_bytes(fakes.SPEC, 64)


@pytest.mark.parametrize("pages", [4, 5, 6, 8])
def test_replies_that_share_too_little_memory_are_whole(pages: int) -> None:
    stores: list[SequenceStore] = []

    def available() -> int:
        written = sum(pool._grown for store in stores for pool in store._pools)
        return (pages - written) * PAGE_BYTES

    stores.append(SequenceStore(fakes.SPEC, CONTEXT, 4, memory=Memory(available, spare_bytes=0)))
    programs = fakes.programs_of(fakes.FakeExecutable())
    run = Engine(programs, stores[0], fakes.VOCAB, (fakes.END,), chunk_rows=64)
    params = SamplingParams(temperature=0, max_tokens=60, ignore_eos=True)
    prompts = [[number] * (50 + 10 * number) for number in range(1, 5)]
    sequences = [run.sequence(prompt, params) for prompt in prompts]
    assert together(run, sequences) == [expected(prompt, 60) for prompt in prompts]
    assert (run.room().slots, run.room().pages) == (4, pages)


@pytest.mark.parametrize("context_calls", [False, True])
@pytest.mark.parametrize("windows", [(128,), (131, 257), (0, 128), (0, 0, 640), (0,)])
def test_windows_need_no_memory_for_what_has_passed(
    windows: tuple[int, ...], context_calls: bool
) -> None:
    """Memory that was enough for a context when it was loaded is enough for a prompt of it."""
    context, prompt = 40 * 64, [7] * 2300
    states: tuple[State, ...] = tuple(
        AttentionState(attention_name(layer), 1, 2, 2, window, "fp32")
        for layer, window in enumerate(windows)
    )
    if context_calls:
        states = with_long_calls(states, context)
        assert largest_call(states) >= context
    memory = sequence_bytes(states, context)
    stores: list[SequenceStore] = []

    def available() -> int:
        pools = [pool for store in stores for pool in store._pools]
        return memory - sum(pool._grown * pool.page_bytes for pool in pools)

    stores.append(SequenceStore(states, context, 4, memory=Memory(available, spare_bytes=0)))
    script = dict.fromkeys(range(context), 65)
    programs = fakes.programs_of(fakes.FakeExecutable(script))
    rows = min(2300, largest_call(states))
    run = Engine(programs, stores[0], fakes.VOCAB, (fakes.END,), chunk_rows=rows)
    params = SamplingParams(temperature=0, max_tokens=200)
    assert together(run, [run.sequence(prompt, params)]) == [[65] * 200]
