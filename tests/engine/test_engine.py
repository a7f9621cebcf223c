"""The generation loop, on a model whose next token depends on everything before it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgerun.engine.chooser.params import SamplingParams
from edgerun.engine.engine import Engine, Step
from edgerun.engine.session import Session, shared_prefix
from edgerun.engine.stats import Stats
from edgerun.errors import BackendError, InputError, PromptError
from edgerun.state import Batch, KVCache
from tests.support import fakes

GREEDY = SamplingParams(temperature=0, max_tokens=8)


def engine(executable: Any = None, chunk_rows: int = 4) -> Engine:
    executable = executable or fakes.FakeExecutable()
    programs = fakes.programs_of(executable)
    return Engine(programs, fakes.VOCAB, (fakes.END,), chunk_rows)


def session(context: int = 64) -> Session:
    return Session(KVCache(fakes.SPEC, context, max_sequences=2))


def ids_of(steps: Any) -> list[int]:
    return [step.id for step in steps]


def expected(prompt: list[int], count: int) -> list[int]:
    """What the rule of the fake model gives, computed without cache or engine."""
    ids = list(prompt)
    for _ in range(count):
        ids.append(fakes.next_token(ids))
    return ids[len(prompt) :]


IDS = st.lists(st.integers(0, 255), min_size=1, max_size=20)


@given(prompt=IDS, chunk_rows=st.integers(1, 30))
def test_tokens_do_not_depend_on_the_size_of_prefill_chunks(
    prompt: list[int], chunk_rows: int
) -> None:
    steps = engine(chunk_rows=chunk_rows).generate(session(), prompt, GREEDY)
    assert ids_of(steps) == expected(prompt, 8)


@given(first=IDS, second=IDS, taken=st.integers(0, 8))
def test_a_second_prompt_reuses_the_cache_without_a_trace(
    first: list[int], second: list[int], taken: int
) -> None:
    run, kept = engine(), session()
    steps = run.generate(kept, first, GREEDY)
    for _ in range(taken):
        next(steps)
    steps.close()
    stats = Stats()
    longer = first + second
    assert ids_of(run.generate(kept, longer, GREEDY, stats)) == expected(longer, 8)
    assert stats.reused_tokens >= (min(len(first), len(longer) - 1) if taken else 0)


def test_prefill_runs_in_chunks_and_decode_row_by_row() -> None:
    executable = fakes.FakeExecutable()
    list(engine(executable).generate(session(), list(range(10)), GREEDY))
    assert executable.rows == [4, 4, 2] + [1] * 7


def test_each_phase_runs_on_its_own_executable() -> None:
    prefill, decode = fakes.FakeExecutable(), fakes.FakeExecutable()
    run = Engine(fakes.programs_of(prefill, decode), fakes.VOCAB)
    list(run.generate(session(), [1, 2, 3], GREEDY))
    assert (prefill.rows, decode.rows) == ([3], [1] * 7)


def test_a_stop_id_ends_the_reply() -> None:
    steps = list(engine(fakes.saying("ab", 1)).generate(session(), [1], GREEDY))
    assert steps == [Step(97), Step(98), Step(fakes.END, "stop")]
    assert steps[-1].finish_reason == "stop"


def test_stop_ids_of_the_caller_count_and_eos_can_be_ignored() -> None:
    run = engine(fakes.saying("abc", 1))
    stopping = SamplingParams(temperature=0, max_tokens=8, stop_ids=(98,))
    assert ids_of(run.generate(session(), [1], stopping)) == [97, 98]
    going_on = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True)
    assert len(list(run.generate(session(), [1], going_on))) == 6


def test_the_reply_ends_with_the_context() -> None:
    steps = list(engine().generate(session(12), [1] * 5, SamplingParams(temperature=0)))
    assert len(steps) == 7
    assert steps[-1].finish_reason == "context"


def test_max_tokens_ends_the_reply() -> None:
    steps = list(engine().generate(session(), [1], GREEDY))
    assert (len(steps), steps[-1].finish_reason) == (8, "length")


@pytest.mark.parametrize("length", range(1, 13))
def test_a_prompt_is_used_whole_or_refused_around_the_context(length: int) -> None:
    run, kept = engine(), session(10)
    if length < 10:
        assert ids_of(run.generate(kept, [7] * length, GREEDY)) == expected(
            [7] * length, min(8, 10 - length)
        )
    else:
        with pytest.raises(PromptError, match=rf"{length} tokens and the context is 10"):
            run.generate(kept, [7] * length, GREEDY)


def test_a_context_of_one_token_has_no_room_for_a_reply() -> None:
    with pytest.raises(PromptError, match="the context is 1 token, .* a context of 2 or more"):
        engine().generate(session(1), [7], GREEDY)
    steps = list(engine().generate(session(2), [7], GREEDY))
    assert [step.finish_reason for step in steps] == ["context"]


@pytest.mark.parametrize("prompt", [[], [-1], [fakes.VOCAB]])
def test_unusable_prompts_are_refused_before_anything_runs(prompt: list[int]) -> None:
    executable = fakes.FakeExecutable()
    with pytest.raises(PromptError):
        engine(executable).generate(session(), prompt, GREEDY)
    assert executable.rows == []


def test_timings_count_what_ran() -> None:
    stats = Stats()
    run, kept = engine(fakes.saying("abcd", 3)), session()
    list(run.generate(kept, [1, 2, 3], GREEDY, stats))
    assert (stats.prompt_tokens, stats.reused_tokens) == (3, 0)
    assert (stats.completion_tokens, stats.decode_steps) == (4, 4)
    assert stats.first_token_s >= stats.prefill_s > 0
    assert stats.decode_tokens_per_s > 0
    assert Stats().timings()["decode_tokens_per_s"] == 0


def test_logits_of_all_rows_match_those_of_single_steps() -> None:
    run, kept = engine(), session()
    ids = list(range(10))
    rows = np.concatenate([block.copy() for block in run.logits(kept, ids)])
    assert rows.argmax(axis=-1).tolist() == [fakes.next_token(ids[: i + 1]) for i in range(10)]


class Failing(fakes.FakeExecutable):
    """Writes its rows and then fails at one call."""

    def __init__(self, call: int, error: BaseException) -> None:
        super().__init__()
        self.call, self.error = call, error

    def __call__(self, batch: Batch, cache: KVCache, values: Any = None) -> Mapping[str, Any]:
        result = super().__call__(batch, cache)
        if len(self.rows) == self.call:
            raise self.error
        return result


@pytest.mark.parametrize("call", range(1, 6))
@pytest.mark.parametrize("error", [KeyboardInterrupt(), BackendError("lost")])
def test_a_failed_or_interrupted_call_leaves_the_session_usable(
    call: int, error: BaseException
) -> None:
    kept = session()
    prompt = list(range(9))
    with pytest.raises(type(error)):
        list(engine(Failing(call, error)).generate(kept, prompt, GREEDY))
    assert kept.cache.length(kept.sequence) == len(kept.ids)
    assert ids_of(engine().generate(kept, prompt, GREEDY)) == expected(prompt, 8)


class Wrong(fakes.FakeExecutable):
    def __call__(self, batch: Batch, cache: KVCache, values: Any = None) -> Mapping[str, Any]:
        return {"logits": super().__call__(batch, cache)["logits"][:, :-1]}


def test_logits_of_a_wrong_width_are_a_backend_error() -> None:
    with pytest.raises(BackendError, match="shape"):
        list(engine(Wrong()).generate(session(), [1], GREEDY))


def test_two_generations_cannot_share_a_session() -> None:
    run, kept = engine(), session()
    first = run.generate(kept, [1, 2], GREEDY)
    next(first)
    second = run.generate(kept, [3, 4], GREEDY)
    next(second)
    with pytest.raises(InputError, match="another generation"):
        next(first)
    assert ids_of(second) == expected([3, 4], 8)[1:]


def test_sessions_do_not_disturb_each_other() -> None:
    cache = KVCache(fakes.SPEC, 64, max_sequences=2)
    run = engine()
    streams = [run.generate(Session(cache), prompt, GREEDY) for prompt in ([1, 2], [9])]
    pairs = list(zip(*streams, strict=True))
    assert [ids_of(steps) for steps in zip(*pairs, strict=True)] == [
        expected([1, 2], 8),
        expected([9], 8),
    ]


def test_a_closed_session_gives_its_sequence_back_and_refuses_work() -> None:
    cache = KVCache(fakes.SPEC, 64, max_sequences=1)
    kept = Session(cache)
    with pytest.raises(InputError, match="in use"):
        Session(cache)
    kept.close()
    kept.close()
    with pytest.raises(InputError, match="closed"):
        next(engine().generate(kept, [1], GREEDY))
    assert list(engine().generate(Session(cache), [1], GREEDY))


def test_clearing_a_closed_session_leaves_the_next_one_of_its_sequence_alone() -> None:
    cache = KVCache(fakes.SPEC, 64, max_sequences=1)
    old = Session(cache)
    old.close()
    new = Session(cache)
    list(engine().generate(new, [1, 2, 3], GREEDY))
    with pytest.raises(InputError, match="closed"):
        old.clear()
    assert cache.length(new.sequence) == len(new.ids) > 0


def test_a_stream_of_a_session_closed_meanwhile_says_so() -> None:
    kept = session()
    stream = engine().generate(kept, [1], GREEDY)
    next(stream)
    kept.close()
    with pytest.raises(InputError, match="this session is closed"):
        next(stream)


@pytest.mark.parametrize("ids", [[-1], [1, fakes.VOCAB], [2**31]])
def test_logits_of_ids_outside_the_vocabulary_are_refused(ids: list[int]) -> None:
    executable = fakes.FakeExecutable()
    with pytest.raises(PromptError, match="the vocabulary of the model ends at"):
        engine(executable).logits(session(), ids)
    assert executable.rows == []


def test_logits_do_not_go_on_where_another_generation_has_begun() -> None:
    run, kept = engine(chunk_rows=2), session()
    blocks = run.logits(kept, [1, 2, 3, 4])
    next(blocks)
    list(run.generate(kept, [9], GREEDY))
    with pytest.raises(InputError, match="another generation"):
        next(blocks)


def test_chunks_must_have_rows() -> None:
    with pytest.raises(InputError, match="0 rows"):
        engine(chunk_rows=0)


@given(IDS, IDS)
def test_shared_prefix_is_the_longest(left: list[int], right: list[int]) -> None:
    length = shared_prefix(left, right)
    assert left[:length] == right[:length]
    assert left[length : length + 1] != right[length : length + 1] or length == len(left)
