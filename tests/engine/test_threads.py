"""Several threads on one engine: everyone gets what they would get alone."""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from edgerun.engine.chooser.chooser import Chooser
from edgerun.engine.chooser.params import SamplingParams
from edgerun.engine.engine import Engine
from edgerun.engine.many import Request, generate_many
from edgerun.engine.session import Session
from edgerun.errors import InputError
from edgerun.state import Batch, KVCache
from tests.engine.test_engine import expected
from tests.support import fakes

THREADS = 8
GREEDY = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True)


class OneBuffer(fakes.FakeExecutable):
    """Has one logits buffer, as compiled programs have, and lets other threads run as it works."""

    def __init__(self) -> None:
        super().__init__()
        self.logits = np.zeros((64, fakes.VOCAB), np.float32)

    def __call__(self, batch: Batch, cache: KVCache) -> Mapping[str, NDArray[np.float32]]:
        logits = super().__call__(batch, cache)["logits"]
        time.sleep(1e-5)
        self.logits[: len(logits)] = logits
        return {"logits": self.logits[: len(logits)]}


class SlowChooser(Chooser):
    """Lets other threads run before it looks at the logits."""

    def draw(self, logits: NDArray[np.float32]) -> int:
        time.sleep(1e-5)
        return super().draw(logits)


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> Engine:
    monkeypatch.setattr("edgerun.engine.engine.Chooser", SlowChooser)
    executable = OneBuffer()
    programs = fakes.programs_of(executable)
    return Engine(programs, fakes.VOCAB, (fakes.END,), chunk_rows=4)


def in_threads(work: Callable[[int], Any], count: int = THREADS) -> list[Any]:
    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(work, range(count)))


def prompt_of(number: int, turn: int = 0) -> list[int]:
    return [1, 2, 3, *range(turn, turn + 7), number]


def test_threads_with_a_session_each_get_their_own_tokens(engine: Engine) -> None:
    cache = KVCache(fakes.SPEC, 64, THREADS)

    def talk(number: int) -> list[list[int]]:
        session, replies = Session(cache), []
        for turn in range(5):
            steps = engine.generate(session, prompt_of(number, turn), GREEDY)
            replies.append([step.id for step in steps])
        return replies

    alone = [[expected(prompt_of(n, turn), 6) for turn in range(5)] for n in range(THREADS)]
    assert in_threads(talk) == alone
    gc.collect()
    assert (cache.room().slots, cache.room().pages) == (THREADS, THREADS)


def test_threads_open_fork_fill_and_drop_sessions(engine: Engine) -> None:
    cache = KVCache(fakes.SPEC, 130, THREADS + 2)

    def churn(number: int) -> bool:
        right = True
        for turn in range(8):
            session = Session(cache)
            prompt = [number] * 60 + prompt_of(number, turn)
            steps = engine.generate(session, prompt, GREEDY)
            right &= [next(steps).id for _ in range(3)] == expected(prompt, 3)
            if turn % 2:
                session.clear()
            if turn % 3:
                session.close()
        return right

    assert all(in_threads(churn))
    gc.collect()
    assert (cache.room().slots, cache.room().pages) == (THREADS + 2, 3 * (THREADS + 2))


def test_together_and_alone_do_not_mix(engine: Engine) -> None:
    cache = KVCache(fakes.SPEC, 64, 12)

    def work(number: int) -> Any:
        session = Session(cache)
        if number % 3 == 0:
            found: dict[int, list[int]] = {0: [], 1: []}
            requests = [Request(prompt_of(number, turn), GREEDY) for turn in range(2)]
            for index, step in generate_many(engine, session, requests):
                found[index].append(step.id)
            return [found[0], found[1]]
        if number % 3 == 1:
            blocks = engine.logits(session, prompt_of(number))
            return np.concatenate(list(blocks)).argmax(axis=-1).tolist()
        return [step.id for step in engine.generate(session, prompt_of(number), GREEDY)]

    def alone(number: int) -> Any:
        prompt = prompt_of(number)
        if number % 3 == 0:
            return [expected(prompt_of(number, turn), 6) for turn in range(2)]
        if number % 3 == 1:
            return [fakes.next_token(prompt[: i + 1]) for i in range(len(prompt))]
        return expected(prompt, 6)

    assert in_threads(work, 6) == [alone(number) for number in range(6)]


def test_a_session_is_closed_once_however_many_threads_close_it() -> None:
    cache = KVCache(fakes.SPEC, 64, 2)
    session = Session(cache)
    in_threads(lambda _: session.close())
    assert cache.room().slots == 2
    sessions = [Session(cache) for _ in range(2)]
    assert {each.sequence for each in sessions} == {0, 1}


def test_no_sequence_is_given_to_two(monkeypatch: pytest.MonkeyPatch) -> None:
    in_use = KVCache._in_use

    def slowly(self: KVCache, sequence: int) -> bool:
        found = in_use(self, sequence)
        time.sleep(1e-4)
        return found

    monkeypatch.setattr(KVCache, "_in_use", slowly)
    cache = KVCache(fakes.SPEC, 64, THREADS)
    sessions = in_threads(lambda _: Session(cache))
    assert sorted(each.sequence for each in sessions) == list(range(THREADS))


def test_a_forgotten_session_gives_its_sequence_back(engine: Engine) -> None:
    cache = KVCache(fakes.SPEC, 64, 1)
    for number in range(3):
        steps = engine.generate(Session(cache), prompt_of(number), GREEDY)
        assert next(steps).id == expected(prompt_of(number), 1)[0]
        del steps  # it alone had the session


def test_a_finaliser_waits_for_nobody() -> None:
    """It may run in a thread that holds the lock, or while that thread waits for this one."""
    cache = KVCache(fakes.SPEC, 64, 2)
    session, ended = Session(cache), threading.Event()
    cache.lock.run(session.close)
    sessions = [Session(cache)]

    def forget() -> None:
        sessions.clear()
        ended.set()

    def hold() -> bool:
        threading.Thread(target=forget).start()
        return ended.wait(20)

    assert cache.lock.run(hold)
    assert cache.room().slots == 2


def test_a_step_of_a_session_closed_by_another_thread_says_so(engine: Engine) -> None:
    cache = KVCache(fakes.SPEC, 64, 2)
    session = Session(cache)
    steps = engine.generate(session, prompt_of(1), GREEDY)
    next(steps)
    in_threads(lambda _: session.close(), 1)
    with pytest.raises(InputError, match="this session is closed"):
        next(steps)


def test_everyone_comes_forward(engine: Engine) -> None:
    """When the first of many equal replies is whole, no other has been left behind."""
    cache = KVCache(fakes.SPEC, 64, THREADS)
    counts, start = [0] * THREADS, threading.Barrier(THREADS)
    seen: list[list[int]] = []

    def talk(number: int) -> None:
        session = Session(cache)
        steps = engine.generate(session, [number], SamplingParams(temperature=0, max_tokens=40))
        next(steps)
        start.wait()
        for _ in steps:
            counts[number] += 1
        seen.append(counts.copy())

    in_threads(talk)
    assert min(seen[0]) >= 10
