"""The engine, on a model whose next token depends on everything before it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgerun.engine import queue as queue_module
from edgerun.engine.chooser.params import SamplingParams
from edgerun.engine.engine import Engine
from edgerun.engine.sequence import AHEAD, Sequence, Token
from edgerun.errors import BackendError, Full, InputError, PromptError, SamplingError
from edgerun.state import Batch, Room, SequenceStore
from tests.support import fakes, plain_store

GREEDY = SamplingParams(temperature=0, max_tokens=8)


def engine(
    executable: Any = None, chunk_rows: int = 4, context: int = 64, slots: int = 2
) -> Engine:
    programs = fakes.programs_of(executable or fakes.FakeExecutable())
    store = SequenceStore(fakes.SPEC, context, slots)
    return Engine(programs, store, fakes.VOCAB, (fakes.END,), chunk_rows)


def plain(slots: int = 4, pages: int = 64, **rows: int) -> tuple[Any, plain_store.PlainPrograms]:
    """An engine on a store whose pages are few and shared, and its programs."""
    programs: Any = plain_store.PlainPrograms()
    store: Any = plain_store.PlainStore(slots, pages)
    return Engine(programs, store, plain_store.VOCAB, (plain_store.END,), **rows), programs


def generate(run: Engine, prompt: list[int], params: SamplingParams = GREEDY) -> Iterator[Token]:
    return run.tokens(run.sequence(prompt, params))


def ids_of(tokens: Any) -> list[int]:
    return [token.id for token in tokens]


def together(run: Engine, sequences: list[Sequence]) -> list[list[int]]:
    """The ids of several sequences that run at a time."""
    replies: list[list[int]] = [[] for _ in sequences]
    for sequence in sequences:
        run.add(sequence)
    while not all(sequence.is_ended for sequence in sequences):
        run.wait([each for each in sequences if not each.is_ended])
        for ids, sequence in zip(replies, sequences, strict=True):
            while token := sequence.take():
                ids.append(token.id)
    return replies


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
    assert ids_of(generate(engine(chunk_rows=chunk_rows), prompt)) == expected(prompt, 8)


@given(first=IDS, second=IDS, taken=st.integers(1, 8))
def test_the_next_turn_goes_on_from_the_last_without_a_trace(
    first: list[int], second: list[int], taken: int
) -> None:
    run = engine(context=90)
    before = run.sequence(first, GREEDY)
    before.is_retained = True
    tokens = run.tokens(before)
    said = [next(tokens).id for _ in range(taken)]
    tokens.close()
    longer = first + said + second
    after = run.sequence(longer, GREEDY)
    after.previous = before
    assert ids_of(run.tokens(after)) == expected(longer, 8)
    assert after.stats.reused_tokens == len(first) + len(said) - 1
    other = run.sequence(second, GREEDY)
    other.previous = after  # which was not retained
    assert ids_of(run.tokens(other)) == expected(second, 8)


def test_prefill_runs_in_chunks_and_decode_row_by_row() -> None:
    executable = fakes.FakeExecutable()
    list(generate(engine(executable), list(range(10))))
    assert executable.rows == [4, 4, 2] + [1] * 7


def test_each_phase_runs_on_its_own_executable() -> None:
    prefill, decode = fakes.FakeExecutable(), fakes.FakeExecutable()
    store = SequenceStore(fakes.SPEC, 64)
    run = Engine(fakes.programs_of(prefill, decode), store, fakes.VOCAB)
    list(generate(run, [1, 2, 3]))
    assert (prefill.rows, decode.rows) == ([3], [1] * 7)


def test_a_stop_id_ends_the_reply() -> None:
    tokens = list(generate(engine(fakes.saying("ab", 1)), [1]))
    assert tokens == [Token(97), Token(98), Token(fakes.END, "stop")]


def test_stop_ids_of_the_caller_count_and_eos_can_be_ignored() -> None:
    run = engine(fakes.saying("abc", 1))
    stopping = SamplingParams(temperature=0, max_tokens=8, stop_ids=(98,))
    assert ids_of(generate(run, [1], stopping)) == [97, 98]
    going_on = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True)
    assert len(list(generate(run, [1], going_on))) == 6
    assert ids_of(generate(run, [1], SamplingParams(temperature=0, stop_ids=(fakes.VOCAB - 1,))))
    with pytest.raises(SamplingError, match=f"holds {fakes.VOCAB}; the vocabulary .* ends at"):
        run.sequence([1], SamplingParams(stop_ids=(5, fakes.VOCAB)))


def test_a_stop_id_in_the_prompt_ends_nothing() -> None:
    assert ids_of(generate(engine(), [1, fakes.END])) == expected([1, fakes.END], 8)


def test_the_reply_ends_with_the_context() -> None:
    tokens = list(generate(engine(context=12), [1] * 5, SamplingParams(temperature=0)))
    assert len(tokens) == 7
    assert tokens[-1].finish_reason == "context"


def test_max_tokens_ends_the_reply() -> None:
    tokens = list(generate(engine(), [1]))
    assert (len(tokens), tokens[-1].finish_reason) == (8, "length")


@pytest.mark.parametrize("length", range(1, 13))
def test_a_prompt_is_used_whole_or_refused_around_the_context(length: int) -> None:
    run, prompt = engine(context=10), [7] * length
    if length < 10:
        assert ids_of(generate(run, prompt)) == expected(prompt, min(8, 10 - length))
    else:
        with pytest.raises(PromptError, match=rf"{length} tokens and the context is 10"):
            generate(run, prompt)


def test_a_context_of_one_token_has_no_room_for_a_reply() -> None:
    with pytest.raises(PromptError, match="the context is 1 token, .* a context of 2 or more"):
        generate(engine(context=1), [7])
    tokens = list(generate(engine(context=2), [7]))
    assert [token.finish_reason for token in tokens] == ["context"]


@pytest.mark.parametrize("prompt", [[], [-1], [fakes.VOCAB]])
def test_unusable_prompts_are_refused_before_anything_runs(prompt: list[int]) -> None:
    executable = fakes.FakeExecutable()
    with pytest.raises(PromptError):
        generate(engine(executable), prompt)
    assert executable.rows == []


def test_timings_count_what_ran() -> None:
    run = engine(fakes.saying("abcd", 3))
    sequence = run.sequence([1, 2, 3], GREEDY)
    list(run.tokens(sequence))
    stats = sequence.stats
    assert (stats.prompt_tokens, stats.reused_tokens, stats.read_tokens) == (3, 0, 3)
    assert (stats.completion_tokens, stats.decode_steps) == (4, 4)
    assert stats.first_token_s >= stats.prefill_s > 0
    assert stats.decode_tokens_per_s > 0
    assert run.sequence([1], GREEDY).stats.timings()["decode_tokens_per_s"] == 0


def test_logits_of_all_rows_match_those_of_single_steps() -> None:
    ids = list(range(10))
    rows = np.concatenate(list(engine().logits(ids)))
    assert rows.argmax(axis=-1).tolist() == [fakes.next_token(ids[: i + 1]) for i in range(10)]


@pytest.mark.parametrize("ids", [[-1], [1, fakes.VOCAB], [2**31]])
def test_logits_of_ids_outside_the_vocabulary_are_refused(ids: list[int]) -> None:
    executable = fakes.FakeExecutable()
    with pytest.raises(PromptError, match="the vocabulary of the model ends at"):
        engine(executable).logits(ids)
    assert executable.rows == []


class Failing(fakes.FakeExecutable):
    """Writes its rows and then fails at one call."""

    def __init__(self, call: int, error: BaseException) -> None:
        super().__init__()
        self.call, self.error = call, error

    def __call__(self, batch: Batch, cache: Any, values: Any = None) -> Any:
        result = super().__call__(batch, cache)
        if len(self.rows) == self.call:
            raise self.error
        return result


@pytest.mark.parametrize("call", range(1, 6))
@pytest.mark.parametrize("error", [KeyboardInterrupt(), BackendError("lost")])
def test_a_failed_or_interrupted_call_leaves_the_engine_usable(
    call: int, error: BaseException
) -> None:
    run, prompt = engine(Failing(call, error)), list(range(9))
    with pytest.raises(type(error)):
        list(generate(run, prompt))
    assert ids_of(generate(run, prompt)) == expected(prompt, 8)
    assert run.room().slots == 2


class Wrong(fakes.FakeExecutable):
    def __call__(self, batch: Batch, cache: Any, values: Any = None) -> Any:
        return {"logits": super().__call__(batch, cache)["logits"][:, :-1]}


def test_logits_of_a_wrong_width_are_a_backend_error() -> None:
    with pytest.raises(BackendError, match="shape"):
        list(generate(engine(Wrong()), [1]))


def test_a_sequence_that_is_forgotten_gives_its_slot_back_and_ends() -> None:
    run = engine(slots=1)
    sequence = run.sequence([1], GREEDY)
    tokens = run.tokens(sequence)
    next(tokens)
    run.forget(sequence)
    assert run.room().slots == 1
    assert list(tokens) == []


def test_a_closed_engine_says_so() -> None:
    run = engine()
    tokens = generate(run, [1])
    next(tokens)
    run.close()
    run.close()
    for use in (lambda: next(tokens), lambda: generate(run, [1]), lambda: run.logits([1])):
        with pytest.raises(InputError, match="this model is closed: load it again"):
            use()


@pytest.mark.parametrize("rows", [{"chunk_rows": 0}, {"prompt_rows": 0}])
def test_calls_must_have_rows(rows: dict[str, int]) -> None:
    with pytest.raises(InputError, match="expected at least 1"):
        plain(**rows)


def test_rows_share_calls_and_a_common_beginning_is_computed_once() -> None:
    run, programs = plain(chunk_rows=8)
    beginning = list(range(1, 17))  # four pages
    sequences = [run.sequence([*beginning, 20 + n, 7], GREEDY) for n in range(3)]
    serial = [ids_of(generate(plain()[0], list(each.ids))) for each in sequences]
    assert together(run, sequences) == serial
    rows = [sum(call.values()) for call in programs.calls]
    assert rows == [8, 8, 2 + 2 + 2] + [3] * 7
    assert [each.stats.reused_tokens for each in sequences] == [0, 16, 16]
    assert [each.stats.decode_steps for each in sequences] == [7] * 3


def test_prompts_fill_the_calls_of_replies_under_way_up_to_their_share() -> None:
    run, programs = plain(chunk_rows=8, prompt_rows=5)
    short, long = run.sequence([1], GREEDY), run.sequence([2] * 17, GREEDY)
    together(run, [short, long])
    rows = [sum(call.values()) for call in programs.calls]
    assert rows == [6, 6, 6, 3, *[2] * 4, *[1] * 3]


def test_requests_wait_for_a_slot_in_order() -> None:
    run, programs = plain(slots=2)
    sequences = [run.sequence([n], SamplingParams(temperature=0, max_tokens=3)) for n in range(5)]
    assert together(run, sequences) == [ids_of(generate(plain()[0], [n]))[:3] for n in range(5)]
    assert [len(call) for call in programs.calls] == [2] * 6 + [1] * 3


def test_a_sequence_that_nobody_reads_pauses_and_makes_place() -> None:
    params = SamplingParams(temperature=0, max_tokens=2 * AHEAD)
    run, _ = plain(slots=1)
    unread, read = run.sequence([1], params), run.sequence([2], params)
    run.add(unread)
    assert ids_of(run.tokens(read)) == ids_of(generate(plain()[0], [2], params))
    assert unread.pending == len(unread.ids) == 1 + AHEAD
    assert ids_of(run.tokens(unread)) == ids_of(generate(plain()[0], [1], params))


@pytest.mark.parametrize("pages", [3, 4, 5, 8])
def test_preemption_gives_the_same_ids(pages: int) -> None:
    params = SamplingParams(temperature=0, max_tokens=9)
    run, programs = plain(pages=pages)
    prompts = [[n, 3, n] for n in range(4)]
    replies = together(run, [run.sequence(prompt, params) for prompt in prompts])
    assert replies == [ids_of(generate(plain()[0], prompt, params)) for prompt in prompts]
    assert run.room() == Room(4, pages, plain_store.PAGE_TOKENS)


def test_a_reply_that_outgrows_memory_ends_with_a_reason() -> None:
    run, _ = plain(pages=2)
    sequence = run.sequence([1, 2], SamplingParams(temperature=0))
    tokens = list(run.tokens(sequence))
    assert ids_of(tokens) == ids_of(generate(plain()[0], [1, 2]))[:7]
    assert [token.finish_reason for token in tokens] == [None] * 7
    assert (sequence.finish_reason, sequence.error) == ("memory", None)
    assert run.room().pages == 2


def test_a_prompt_that_memory_cannot_hold_is_refused() -> None:
    run, programs = plain(pages=2)
    for use in (lambda: run.sequence([1] * 9, GREEDY), lambda: run.logits([1] * 9)):
        with pytest.raises(PromptError, match="9 tokens .* room for 8"):
            use()
    assert ids_of(generate(run, [1] * 7))
    assert programs.calls


def test_logits_for_which_memory_is_gone_do_not_just_end(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(slot: int, length: int) -> None:
        raise Full("no page is left")

    run, _ = plain()
    monkeypatch.setattr(run._store, "reserve", full)
    with pytest.raises(Full, match="score less of it"):
        list(run.logits([1, 2, 3]))


def test_pages_that_are_gone_all_the_same_are_taken_from_the_youngest(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A store may have less than it said."""
    run, _ = plain()
    store, reserve = run._store, run._store.reserve

    def scarce(slot: int, length: int) -> None:
        others = [each for each in run._queue.sequences if each.lease and each.lease.slot != slot]
        if others and length > 4:
            raise Full("no page is left")
        reserve(slot, length)

    monkeypatch.setattr(store, "reserve", scarce)
    prompts = [[n, 3, n] for n in range(3)]
    params = SamplingParams(temperature=0, max_tokens=9)
    sequences = [run.sequence(prompt, params) for prompt in prompts]
    replies = together(run, sequences)
    assert replies == [ids_of(generate(plain()[0], prompt, params)) for prompt in prompts]
    assert sequences[0].stats.decode_steps == 8  # it was never computed again


def test_what_led_to_an_error_is_not_used_again() -> None:
    run, programs = plain()
    run_batch, broken = programs.run, [True]

    def nan(batch: Batch, store: Any) -> Any:
        logits = run_batch(batch, store)["logits"]
        return {"logits": logits * float("nan") if broken else logits}

    programs.run = nan
    first = run.sequence([1, 2, 3, 4, 5], GREEDY)
    first.is_retained = True
    with pytest.raises(BackendError, match="nan"):
        list(run.tokens(first))
    broken.clear()
    second = run.sequence([1, 2, 3, 4, 5], GREEDY)
    second.previous = first
    assert ids_of(run.tokens(second)) == ids_of(generate(plain()[0], [1, 2, 3, 4, 5]))
    assert second.stats.reused_tokens == 0


def test_who_waits_for_a_slot_is_not_scheduled_anew_with_every_token(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """And gets it with the first step after somebody ended."""
    schedules: list[int] = []

    def counted(*arguments: Any) -> Any:
        schedules.append(len(arguments[0]))
        return schedule(*arguments)

    schedule = queue_module.schedule
    monkeypatch.setattr(queue_module, "schedule", counted)
    executable, count = fakes.FakeExecutable(), 24
    run = engine(executable)
    params = SamplingParams(temperature=0, max_tokens=count, ignore_eos=True)
    prompts = [[40 + index] for index in range(6)]
    assert together(run, [run.sequence(prompt, params) for prompt in prompts]) == [
        expected(prompt, count) for prompt in prompts
    ]
    assert len(executable.rows) == 3 * count
    assert schedules == [2, 2, 2]
