"""What forked children put right: in order, for what still lives; nothing without forks."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from collections.abc import Callable

import pytest

from edgerun.forks import each_in_forked_child, in_forked_child

FORK = """
import os
from edgerun.forks import each_in_forked_child, in_forked_child

class Name(str): pass

called = []
in_forked_child(lambda: called.append("first"))
names = each_in_forked_child(called.append)
in_forked_child(lambda: called.append("last"))
name = Name("object")
names.add(name)
child = os.fork()
if child:
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert called == [], called
else:
    assert called == ["first", "object", "last"], called
"""


class Counted:
    """Counts how often it was told."""

    def __init__(self) -> None:
        self.count = 0

    def tell(self) -> None:
        self.count += 1


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
def test_a_child_calls_in_the_order_of_asking_and_its_parent_nothing() -> None:
    done = subprocess.run(
        [sys.executable, "-c", FORK], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_objects_are_told_as_long_as_they_live(monkeypatch: pytest.MonkeyPatch) -> None:
    hooks: list[Callable[[], object]] = []
    monkeypatch.setattr(
        os,
        "register_at_fork",
        lambda *, after_in_child: hooks.append(after_in_child),
        raising=False,
    )
    objects = each_in_forked_child(Counted.tell)
    alive, dropped, discarded = Counted(), Counted(), Counted()
    for each in (alive, dropped, discarded):
        objects.add(each)
    objects.discard(discarded)
    del each, dropped
    gc.collect()
    assert list(objects) == [alive]
    for hook in hooks * 2:  # a child forks, too
        hook()
    assert (alive.count, discarded.count) == (2, 0)


def test_nothing_is_called_without_forks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "register_at_fork", raising=False)
    counted = Counted()
    in_forked_child(counted.tell)
    each_in_forked_child(Counted.tell).add(counted)
    assert counted.count == 0


LOCKS = """
import os, signal, sys, threading
from contextlib import ExitStack
from edgerun.engine.constraints import matcher
from edgerun.kernels.jit import service
import edgerun

with edgerun.load() as llm:
    library = llm.tokenizer._library
    kernel = next(iter(service._COMPILED.values()))
    locks = [service._LOCK, matcher._LOCK, library._lock, kernel._lock]
    taken, done = threading.Event(), threading.Event()

    def hold():
        with ExitStack() as stack:
            for lock in locks:
                stack.enter_context(lock)
            taken.set()
            done.wait(100)

    thread = threading.Thread(target=hold)
    thread.start()
    taken.wait(100)
    child = os.fork()
    signal.alarm(60)
    if not child:
        assert kernel.address
        assert llm.tokenizer.encode("a dog")
        for lock in (service._LOCK, matcher._LOCK):
            assert lock.acquire(timeout=1)
        os._exit(0)
    done.set()
    thread.join()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
def test_a_child_does_not_wait_for_locks_of_threads_that_it_has_not() -> None:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", LOCKS],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
