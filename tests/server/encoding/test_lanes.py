"""Threads that encode: forms that may take long wait for one another, and nobody else for them."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from edgerun.server.encoding import lanes
from edgerun.server.encoding.lanes import Lanes
from edgerun.server.encoding.shapes import Shape
from edgerun.server.problems import Problem


def shape(name: str) -> Shape:
    return Shape(name.encode(), 1)


def nothing() -> None:
    """Checks nothing."""


def run(work: Callable[[Lanes[str]], Coroutine[Any, Any, None]]) -> None:
    async def within() -> None:
        box: Lanes[str] = Lanes()
        try:
            await asyncio.wait_for(work(box), 20)
        finally:
            box.close()

    asyncio.run(within())


def test_whoever_asks_for_no_form_does_not_wait_for_those_that_take_long() -> None:
    gate = threading.Event()

    def slow() -> str:
        gate.wait(20)
        return "slow"

    async def work(box: Lanes[str]) -> None:
        trials = [
            asyncio.create_task(box.run(slow, nothing, shape(str(number)))) for number in range(5)
        ]
        await asyncio.sleep(0)
        assert await box.run(lambda: "usual", nothing, None) == "usual"
        assert not any(trial.done() for trial in trials)
        gate.set()
        assert await asyncio.gather(*trials) == ["slow"] * 5

    run(work)


def test_a_form_that_was_quick_does_not_wait_for_those_that_are_new() -> None:
    gate = threading.Event()

    async def work(box: Lanes[str]) -> None:
        assert await box.run(lambda: "a", nothing, shape("a")) == "a"
        trials = [
            asyncio.create_task(box.run(lambda: str(gate.wait(20)), nothing, shape(name)))
            for name in "bcd"
        ]
        await asyncio.sleep(0)
        assert await box.run(lambda: "again", nothing, shape("a")) == "again"
        gate.set()
        await asyncio.gather(*trials)

    run(work)


@pytest.mark.parametrize("quick_s", [-1.0, 60.0])
def test_many_who_ask_for_a_new_form_try_it_one_after_the_other(
    quick_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lanes, "QUICK_S", quick_s)
    trying, most, threads = 0, 0, set()

    def make() -> str:
        nonlocal trying, most
        trying += 1
        most = max(most, trying)
        time.sleep(0.005)
        trying -= 1
        threads.add(threading.current_thread().name.rpartition("_")[0])
        return "made"

    async def work(box: Lanes[str]) -> None:
        asked = [box.run(make, nothing, shape("a")) for _ in range(20)]
        assert await asyncio.gather(*asked) == ["made"] * 20
        assert not box._short.waiting

    run(work)
    if quick_s < 0:  # it may take long each time
        assert (most, threads) == (1, {"edgerun-try"})
    else:
        assert threads == {"edgerun-try", "edgerun-encode"}


def test_more_forms_than_can_be_tried_soon_are_refused_at_once() -> None:
    gate = threading.Event()

    async def work(box: Lanes[str]) -> None:
        trials = [
            asyncio.create_task(box.run(lambda: str(gate.wait(20)), nothing, shape(str(number))))
            for number in range(lanes.MOST_SHORT)
        ]
        await asyncio.sleep(0)
        with pytest.raises(Problem, match="16 schemas or grammars that are new here wait") as error:
            await box.run(lambda: "", nothing, shape("another"))
        assert (error.value.status, error.value.headers) == (429, {"Retry-After": "2"})
        again = asyncio.create_task(box.run(lambda: "again", nothing, shape("0")))
        gate.set()
        assert (await asyncio.gather(*trials, again))[-1] == "again"
        assert await box.run(lambda: "later", nothing, shape("another")) == "later"

    run(work)


def test_short_forms_do_not_wait_for_long_ones() -> None:
    gate = threading.Event()

    async def work(box: Lanes[str]) -> None:
        trials = [
            asyncio.create_task(
                box.run(lambda: str(gate.wait(20)), nothing, Shape(bytes([number]), 1 << 20))
            )
            for number in range(lanes.MOST_LONG)
        ]
        await asyncio.sleep(0)
        assert await box.run(lambda: "short", nothing, shape("short")) == "short"
        with pytest.raises(Problem, match="4 schemas or grammars that are new here wait"):
            await box.run(lambda: "long", nothing, Shape(b"another", 1 << 20))
        gate.set()
        await asyncio.gather(*trials)

    run(work)


def test_a_form_that_fails_or_whose_caller_goes_away_leaves_nothing() -> None:
    gate = threading.Event()

    def fail() -> str:
        raise ValueError("no form")

    async def work(box: Lanes[str]) -> None:
        with pytest.raises(ValueError, match="no form"):
            await box.run(fail, nothing, shape("a"))
        task = asyncio.create_task(box.run(lambda: str(gate.wait(20)), nothing, shape("a")))
        await asyncio.sleep(0.01)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        gate.set()
        assert not box._short.waiting
        assert not box._quick
        assert await box.run(lambda: "a", nothing, shape("a")) == "a"

    run(work)


def test_the_oldest_of_many_known_forms_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lanes, "MOST_KNOWN", 2)
    monkeypatch.setattr(lanes, "QUICK_S", 60.0)

    async def work(box: Lanes[str]) -> None:
        for name in "abc":
            await box.run(lambda: "", nothing, shape(name))
        assert list(box._quick) == [b"b", b"c"]

    run(work)
