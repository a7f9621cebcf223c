"""Short turns: asked for one thread alone, and refused where somebody arranged others."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from typing import Any

import pytest

from edgerun.kernels.host import turns

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="asks Linux")


def in_thread(function: Callable[[], Any]) -> Any:
    """What a function returns in a thread of its own."""
    results: list[Any] = []
    thread = threading.Thread(target=lambda: results.append(function()))
    thread.start()
    thread.join()
    return results[0]


def test_a_thread_gets_short_turns_and_others_keep_theirs() -> None:
    before = turns.turns()
    if before is None or before.runtime == 0 or before.policy != turns.SCHED_OTHER:
        pytest.skip("this system does not know turns of threads, or arranged them otherwise")
    length, nice = in_thread(
        lambda: (turns.take_short_turns(), turns.turns().runtime, turns.turns().nice)[1:]
    )
    assert length == turns.TURN_NS < before.runtime
    assert nice == before.nice
    after = turns.turns()
    assert after is not None
    assert after.runtime == before.runtime


def test_turns_that_somebody_arranged_stay() -> None:
    def ask() -> tuple[bool, int]:
        os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
        return turns.take_short_turns(), os.sched_getscheduler(0)

    assert in_thread(ask) == (False, os.SCHED_BATCH)


def test_a_processor_whose_calls_are_not_known_is_asked_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("platform.machine", lambda: "riscv64")
    assert turns.turns() is None
    assert not turns.take_short_turns()
