"""Threads that fork beside each other, in the words of the hooks that the system calls."""

from __future__ import annotations

import threading
from types import SimpleNamespace

import pytest

from edgerun.backends.cpu.experts import stream


class Lock:
    """Says when it is asked for."""

    def __init__(self) -> None:
        self.asked = threading.Semaphore(0)
        self.lock = threading.Lock()
        self.release = self.lock.release

    def acquire(self) -> None:
        self.asked.release()
        self.lock.acquire()


@pytest.fixture
def locks(monkeypatch: pytest.MonkeyPatch) -> list[Lock]:
    """Those of two streams, in the order of the streams that forks go by."""
    streams = sorted((SimpleNamespace(_lock=Lock()) for _ in range(2)), key=id)
    monkeypatch.setattr(stream, "_STREAMS", streams[::-1])
    return [each._lock for each in streams]


def test_each_of_two_threads_lets_go_what_it_held(locks: list[Lock]) -> None:
    def fork() -> None:
        stream._hold()
        stream._let_go()

    other = threading.Thread(target=fork, daemon=True)
    stream._hold()
    other.start()
    assert all(locks[0].asked.acquire(timeout=60) for _ in range(2))  # the other waits, too
    stream._let_go()
    other.join(60)
    assert not other.is_alive()
    assert not any(each.lock.locked() for each in locks)


def test_a_fork_that_is_interrupted_lets_go_what_it_held(
    locks: list[Lock], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(locks[1], "acquire", interrupted)
    with pytest.raises(KeyboardInterrupt):
        stream._hold()
    assert [each.lock.locked() for each in locks] == [True, False]
    stream._let_go()
    assert not locks[0].lock.locked()
