"""Threads that encode: replies whose form may take long are begun beside all others.

Whether a schema or a grammar is hostile is known when it was tried, which may take seconds of the
processor, by its length. So forms that are new here wait for one another, short ones for short ones
alone, and nobody else for them.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from edgerun.engine.constraints.trial import SHORT_BYTES
from edgerun.server.encoding.shapes import Shape
from edgerun.server.problems import Problem

T = TypeVar("T")

THREADS = 2  # of a lane; each of them waits for a sandbox most of the time
MOST_SHORT, MOST_LONG = 16, 4  # forms that may wait to be tried
MOST_KNOWN = 256
QUICK_S = 0.1  # what takes no longer need not wait apart the next time
RETRY_S = 2


class Lane(Generic[T]):
    """A few threads, and those who wait for one of them."""

    def __init__(self, name: str, threads: int = THREADS) -> None:
        """Starts nothing yet; in a running event loop."""
        self._loop = asyncio.get_running_loop()
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix=name)
        self._free = asyncio.Semaphore(threads)

    async def run(self, make: Callable[[], T], check: Callable[[], None]) -> T:
        """Has a thread make something as soon as one is free.

        Who waits does so here and not in the queue of the threads, which would keep the prompts of
        callers who went away until their turn comes.

        Args:
            make: makes it.
            check: raises what is to be raised once it is in vain, before and after.
        """
        await self._free.acquire()
        try:
            check()
            making = self._threads.submit(make)
        except BaseException:
            self._free.release()
            raise
        making.add_done_callback(self._is_free)  # though nobody waits for it any more
        result = await asyncio.wrap_future(making)
        check()
        return result

    def close(self) -> None:
        """Makes nothing more; what is being made is not waited for."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _is_free(self, making: object) -> None:
        with suppress(RuntimeError):  # the server has ended meanwhile
            self._loop.call_soon_threadsafe(self._free.release)


@dataclass
class _Trial:
    """A form that is tried, by one after the other of those who ask for it."""

    turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    callers: int = 0


@dataclass
class _Trials(Generic[T]):
    """Forms that wait for the threads of a lane, ``most`` of them."""

    lane: Lane[T]
    most: int
    waiting: dict[bytes, _Trial] = field(default_factory=dict)

    def of(self, digest: bytes) -> _Trial:
        """A form that is asked for.

        Raises:
            Problem: too many others wait.
        """
        if digest not in self.waiting and len(self.waiting) >= self.most:
            raise Problem(
                429,
                f"{len(self.waiting)} schemas or grammars that are new here wait to be tried, and "
                f"at most {self.most} of such a length may: try again later",
                "too_many_forms",
                headers={"Retry-After": str(RETRY_S)},
            )
        return self.waiting.setdefault(digest, _Trial())


class Lanes(Generic[T]):
    """Where prompts and forms are encoded; for the thread of an event loop."""

    def __init__(self) -> None:
        """Starts nothing yet; in a running event loop."""
        self._usual: Lane[T] = Lane("edgerun-encode")
        self._counts: Lane[int] = Lane("edgerun-count", threads=1)
        self._short = _Trials[T](Lane("edgerun-try"), MOST_SHORT)
        self._long = _Trials[T](Lane("edgerun-try-long"), MOST_LONG)
        self._quick: dict[bytes, None] = {}  # forms, the oldest first

    async def run(self, make: Callable[[], T], check: Callable[[], None], shape: Shape | None) -> T:
        """Makes something; see ``Lane.run``.

        Args:
            make: makes it.
            check: raises what is to be raised once it is in vain.
            shape: the form of the replies that it is for.

        Raises:
            Problem: too many forms wait to be tried.
        """
        if shape is not None and shape.digest not in self._quick:
            trials = self._short if shape.size_bytes <= SHORT_BYTES else self._long
            trial = trials.of(shape.digest)
            trial.callers += 1
            try:
                async with trial.turn:
                    if shape.digest not in self._quick:
                        return await self._tried(trials.lane, make, check, shape.digest)
            finally:
                trial.callers -= 1
                if not trial.callers:
                    del trials.waiting[shape.digest]
        return await self._usual.run(make, check)

    async def count(self, count: Callable[[], int], check: Callable[[], None]) -> int:
        """Counts the tokens of a prompt, beside those that are to be answered."""
        return await self._counts.run(count, check)

    def close(self) -> None:
        """Makes nothing more."""
        for lane in (self._usual, self._counts, self._short.lane, self._long.lane):
            lane.close()

    async def _tried(
        self, lane: Lane[T], make: Callable[[], T], check: Callable[[], None], digest: bytes
    ) -> T:
        seconds: list[float] = []

        def timed() -> T:
            start = time.perf_counter()
            result = make()
            seconds.append(time.perf_counter() - start)
            return result

        result = await lane.run(timed, check)
        if seconds[0] <= QUICK_S:
            self._quick[digest] = None
            if len(self._quick) > MOST_KNOWN:
                del self._quick[next(iter(self._quick))]
        return result
