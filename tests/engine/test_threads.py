"""Several threads on one engine: everyone gets what they would get alone."""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from edgerun.backends.base import NO_VALUES, Values
from edgerun.engine.chooser.chooser import Chooser
from edgerun.engine.chooser.params import SamplingParams
from edgerun.engine.engine import Engine
from edgerun.engine.sequence import Sequence, Token
from edgerun.errors import InputError
from edgerun.state import Batch, SequenceStore
from tests.engine.test_engine import expected
from tests.support import fakes

THREADS = 8
GREEDY = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True)


class OneBuffer(fakes.FakeExecutable):
    """Has one logits buffer, as compiled programs have, and lets other threads run as it works."""

    def __init__(self) -> None:
        super().__init__()
        self.logits = np.zeros((64, fakes.VOCAB), np.float32)

    def __call__(self, batch: Batch, cache: Any, values: Values = NO_VALUES) -> Values:
        logits = super().__call__(batch, cache)["logits"]
        time.sleep(1e-5)
        self.logits[: len(logits)] = logits
        return {"logits": self.logits[: len(logits)]}


def slow_to_draw(self: Chooser, logits: Any) -> int:
    """Lets other threads run before it looks at the logits."""
    time.sleep(1e-5)
    return int(logits.argmax())


def make_engine(slots: int = THREADS, context: int = 64) -> Engine:
    store = SequenceStore(fakes.SPEC, context, slots)
    return Engine(fakes.programs_of(OneBuffer()), store, fakes.VOCAB, (fakes.END,), chunk_rows=8)


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> Engine:
    monkeypatch.setattr(Chooser, "draw", slow_to_draw)
    return make_engine()


def in_threads(work: Callable[[int], Any], count: int = THREADS) -> list[Any]:
    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(work, range(count)))


def prompt_of(number: int, turn: int = 0) -> list[int]:
    return [1, 2, 3, *range(turn, turn + 7), number]


def generate(engine: Engine, prompt: list[int], params: SamplingParams = GREEDY) -> Iterator[Token]:
    return engine.tokens(engine.sequence(prompt, params))


@pytest.mark.parametrize("slots", [1, 3, THREADS])
def test_threads_get_their_own_tokens(
    slots: int, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = make_engine(slots)

    def talk(number: int) -> list[list[int]]:
        replies = []
        previous: Sequence | None = None
        for turn in range(5):
            sequence = engine.sequence(prompt_of(number, turn), GREEDY)
            sequence.previous, sequence.is_retained = previous, True
            replies.append([token.id for token in engine.tokens(sequence)])
            previous = sequence
        return replies

    alone = [[expected(prompt_of(n, turn), 6) for turn in range(5)] for n in range(THREADS)]
    assert in_threads(talk) == alone
    gc.collect()
    engine.room()
    assert engine._store.room().slots == slots


def test_streams_that_are_dropped_half_way_leave_nothing(engine: Engine) -> None:
    engine = make_engine(3, context=130)

    def churn(number: int) -> bool:
        right = True
        for turn in range(8):
            prompt = [number] * 60 + prompt_of(number, turn)
            tokens = generate(engine, prompt)
            right &= [next(tokens).id for _ in range(3)] == expected(prompt, 3)
            if turn % 2:
                tokens.close()
        return right

    assert all(in_threads(churn))
    gc.collect()
    assert (engine.room().slots, engine.room().pages) == (3, engine._queue.first_room.pages)


def test_scores_and_replies_do_not_mix(engine: Engine) -> None:
    def work(number: int) -> Any:
        if number % 2:
            blocks = engine.logits(prompt_of(number))
            return np.concatenate(list(blocks)).argmax(axis=-1).tolist()
        return [token.id for token in generate(engine, prompt_of(number))]

    def alone(number: int) -> Any:
        prompt = prompt_of(number)
        if number % 2:
            return [fakes.next_token(prompt[: i + 1]) for i in range(len(prompt))]
        return expected(prompt, 6)

    assert in_threads(work) == [alone(number) for number in range(THREADS)]


def test_threads_share_calls(engine: Engine) -> None:
    """Whoever makes a step makes it for all."""
    start = threading.Barrier(THREADS)
    programs: Any = engine._programs
    rows = programs._compiled[-1][1].rows

    def talk(number: int) -> int:
        start.wait()
        return sum(1 for _ in generate(engine, [number]))

    assert in_threads(talk) == [6] * THREADS
    assert len(rows) < 6 * THREADS / 2


def test_a_finaliser_waits_for_nobody(engine: Engine) -> None:
    """It may run in a thread that holds the lock, or while that thread waits for this one."""
    tokens = [generate(engine, prompt_of(0))]
    next(tokens[0])
    ended = threading.Event()

    def forget() -> None:
        tokens.clear()
        ended.set()

    def hold() -> bool:
        threading.Thread(target=forget).start()
        return ended.wait(20)

    assert engine._store.lock.run(hold)
    assert engine.room().slots == THREADS


def test_a_sequence_forgotten_by_another_thread_ends(engine: Engine) -> None:
    sequence = engine.sequence(prompt_of(1), GREEDY)
    tokens = engine.tokens(sequence)
    next(tokens)
    in_threads(lambda _: engine.forget(sequence))
    assert list(tokens) == []


def test_a_model_closed_by_another_thread_says_so(engine: Engine) -> None:
    tokens = generate(engine, prompt_of(1))
    next(tokens)
    in_threads(lambda _: engine.close(), 1)
    with pytest.raises(InputError, match="this model is closed"):
        next(tokens)


def test_everyone_comes_forward(engine: Engine) -> None:
    """When the first of many equal replies is whole, no other has been left behind."""
    counts, start = [0] * THREADS, threading.Barrier(THREADS)
    seen: list[list[int]] = []

    def talk(number: int) -> None:
        tokens = generate(engine, [number], SamplingParams(temperature=0, max_tokens=40))
        next(tokens)
        start.wait()
        for _ in tokens:
            counts[number] += 1
        seen.append(counts.copy())

    in_threads(talk)
    assert min(seen[0]) >= 10


def test_a_reader_who_finds_something_comes_before_the_next_call() -> None:
    engine = make_engine(slots=1)
    running, waiting = (engine.sequence(prompt_of(n), GREEDY) for n in range(2))
    engine.add(running)
    engine.add(waiting)
    engine.readers.begin("another reader", [running])
    while not running.is_ready:
        assert engine.advance([waiting]) == []
    length = len(running.ids)
    for _ in range(2):
        assert (engine.advance([waiting]), len(running.ids)) == ([], length)
    engine.advance([waiting])  # who does not come is not waited for
    assert len(running.ids) == length + 1
    engine.readers.end("another reader")
    assert engine.wait([waiting]) == [waiting]


def test_a_handler_of_a_signal_does_not_change_what_a_step_prepares() -> None:
    """It runs in the middle of one, in the same thread, and the lock lets it in."""
    engine = make_engine(slots=1)
    ended = engine.sequence(prompt_of(0), GREEDY)
    ended.is_retained = True
    list(engine.tokens(ended))
    refusals: list[str] = []
    match = engine._store.match

    def interrupted(*args: Any) -> Any:
        with pytest.raises(InputError) as refusal:
            list(generate(engine, prompt_of(1)))
        refusals.append(str(refusal.value))
        engine.room()
        engine.forget(ended)
        return match(*args)

    engine._store.match = interrupted  # type: ignore[method-assign]
    tokens = [token.id for token in generate(engine, prompt_of(2))]
    assert tokens == expected(prompt_of(2), 6)
    assert len(refusals) == 1 and "while it computes uses the model itself" in refusals[0]
    assert engine.room().slots == 1
