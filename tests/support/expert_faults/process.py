"""What befalls the process: signals, forks, models beside one another, policies and threads."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from edgerun.backends.cpu.experts import stream
from edgerun.kernels.run.residency import LOCK
from tests.support.expert_faults import disk
from tests.support.expert_faults.fault import Fault
from tests.support.expert_faults.session import (
    Session,
    fails,
    in_thread,
    reply,
    stream_of,
    wait_for_reads,
)
from tests.support.interrupts import repeat_until_interrupted

PLACES = (1, 17, 60)
CALLS = (1, 9, 30)  # of a policy
MOST_S = 0.06  # until Ctrl-C
CHILD_S = 20.0


def faults() -> Iterator[Fault]:
    """All of this file."""
    for seed in range(12):
        yield Fault(f"Ctrl-C at time {seed}", partial(_interrupted, seed, 0.0))
    for seed in range(4):
        yield Fault(f"Ctrl-C on a slow disk at time {seed}", partial(_interrupted, seed, 0.001))
    for place in PLACES:
        yield Fault(f"close with reads that hang, read {place}", partial(_closed, place))
        yield Fault(f"fork with reads that hang, read {place}", partial(_forked, place, False))
        yield Fault(f"fork with a held lock, read {place}", partial(_forked, place, True))
        yield Fault(f"the disk fails for one of two models, read {place}", partial(_two, place))
        yield Fault(f"fork from another thread, read {place}", partial(_fork_beside, place))
        for count in (1, 2):
            yield Fault(
                f"one of {count + 1} prompts together, read {place}", partial(_many, count, place)
            )
    for method in ("use", "in_order", "leave"):
        for call in CALLS:
            yield Fault(f"policy fails in {method}, call {call}", partial(_policy, method, call))
    for started in (0, 1):
        yield Fault(f"no more than {started} threads can be started", partial(_threads, started))
    yield Fault("close twice", _closed_twice)
    yield Fault("two models at a time", _beside)


def _interrupted(seed: int, delay: float, session: Session) -> None:
    """Ctrl-C at some time leaves a model that works."""
    rng = random.Random(seed)
    with session.loaded() as llm, session.disk.faulty(disk.slow(delay)):
        for _ in range(3):
            repeat_until_interrupted(lambda: reply(llm), rng, MOST_S)
        session.check_whole(llm)


@contextlib.contextmanager
def _hanging(session: Session, llm: Any, place: int) -> Iterator[None]:
    """Reads hang and a reply has given up; afterwards they come back."""
    goes_on = threading.Event()
    wait_for_reads(llm, 0.1)
    try:
        with session.disk.faulty(disk.hanging(goes_on), place):
            fails(llm, "did not come within")
        wait_for_reads(llm, 60)
        yield
    finally:
        goes_on.set()


def _closed(place: int, session: Session) -> None:
    """Closing does not wait for them, and no thread stays."""
    before, stream.CLOSING_S = stream.CLOSING_S, 0.05
    try:
        with session.loaded() as llm:
            with _hanging(session, llm, place):
                expert_stream = stream_of(llm)
                threads = [*expert_stream._threads, *expert_stream._slot_readers._threads]
                llm.close()
            for thread in threads:
                thread.join(CHILD_S)
            assert not any(thread.is_alive() for thread in threads), "a reader stays"
    finally:
        stream.CLOSING_S = before
    with session.loaded() as llm:
        session.check_whole(llm)


def _forked(place: int, held: bool, session: Session) -> None:
    """A child reads for itself."""
    with session.loaded() as llm:
        with _hanging(session, llm, place):
            control = stream_of(llm)._words.control
            control[LOCK] = int(held)  # by somebody who will not be in the child
            status = in_child(lambda: reply(llm) == session.expected)
            control[LOCK] = 0
        assert status == 0, f"the child ended with {status}"
        session.check_whole(llm)


def _fork_beside(place: int, session: Session) -> None:
    """A process forks while another thread's reply waits for reads."""
    statuses: list[int] = []
    with session.loaded() as llm, session.loaded() as other:
        act = disk.once(lambda: statuses.append(in_child(lambda: True)))
        with session.disk.faulty(act, place):
            assert reply(llm) == session.expected
        assert statuses == [0]
        session.check_whole(llm)
        session.check_whole(other)


def in_child(function: Callable[[], bool]) -> int:
    """The exit code of a forked child, 0 if what it did there was right."""
    child = os.fork()
    if not child:
        with contextlib.suppress(BaseException):
            os._exit(not function())
        os._exit(2)
    end = time.monotonic() + CHILD_S
    while time.monotonic() < end:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.005)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    raise AssertionError("the child hangs")


def _two(place: int, session: Session) -> None:
    """The reads of one fail, and the other's tokens are as ever."""
    with session.loaded() as llm, session.loaded(factor=2) as other:
        assert reply(other) == reply(llm) == session.expected
        theirs = {file._direct for _, file in stream_of(llm)._files._files.values()}
        theirs |= {file._buffered for _, file in stream_of(llm)._files._files.values()}

        def act(descriptor: int, out: memoryview, offset: int) -> int | None:
            if descriptor in theirs:
                raise OSError(5, "gone")
            return None

        with session.disk.faulty(act, place):
            beside = in_thread(lambda: [reply(other) for _ in range(2)])
            fails(llm, "cannot be read any more")
            beside.join()
            assert reply(other) == session.expected
        session.check_whole(llm)
        session.check_whole(other)


def _beside(session: Session) -> None:
    """Each has a pool of its own, and neither says anything else for the other."""
    replies: dict[int, list[int]] = {}
    with session.loaded() as llm, session.loaded(factor=2) as other:
        threads = [
            in_thread(lambda at=at, each=each: replies.__setitem__(at, reply(each)))
            for at, each in enumerate((llm, other))
        ]
        for thread in threads:
            thread.join()
        assert replies == {0: session.expected, 1: session.expected}
        session.check_whole(llm)


def _many(others: int, place: int, session: Session) -> None:
    """Of prompts together each has its own error, and all go well afterwards."""
    prompts = [[3, 5, 8], *[[7, 11 + number] for number in range(others)]]
    greedy: dict[str, Any] = {"max_tokens": 12, "temperature": 0, "ignore_eos": True}
    with session.loaded() as llm:
        before = [done.ids for done in llm.generate_many(prompts, **greedy)]
        with session.disk.faulty(disk.failing(5), place):
            done = llm.generate_many(prompts, **greedy)
            assert [each.finish_reason for each in done] == ["error"] * len(prompts)
        assert [done.ids for done in llm.generate_many(prompts, **greedy)] == before
        session.check_whole(llm)


def _policy(method: str, call: int, session: Session) -> None:
    """A policy that fails ends the reply under way, and no reader."""
    with session.loaded(factor=2) as llm:
        reply(llm)
        policy = stream_of(llm)._pool._policy
        original, calls = getattr(policy, method), [0]

        def fail(*args: Any) -> Any:
            calls[0] += 1
            if calls[0] >= call:
                raise KeyError("of all things")
            return original(*args)

        setattr(policy, method, fail)
        fails(llm, "could not be brought into memory: KeyError")
        delattr(policy, method)
        assert reply(llm) == session.expected


def _threads(started: int, session: Session) -> None:
    """A system that has no more threads: an error in a sentence, or fewer readers."""
    start, count = threading.Thread.start, [0]

    def limited(self: threading.Thread) -> None:
        if self.name.startswith(("edgerun-experts", "edgerun-slots")):
            count[0] += 1
            if count[0] > started:
                raise RuntimeError("can't start new thread")
        start(self)

    with session.loaded() as llm:
        threading.Thread.start = limited  # type: ignore[method-assign]
        try:
            if started:
                assert reply(llm) == session.expected
            else:
                fails(llm, "thread")
        finally:
            threading.Thread.start = start  # type: ignore[method-assign]
        session.check_whole(llm)


def _closed_twice(session: Session) -> None:
    """The second time nothing happens, and another model is as ever."""
    with session.loaded() as other:
        with session.loaded() as llm:
            reply(llm)
            llm.close()
            llm.close()
        session.check_whole(other)
