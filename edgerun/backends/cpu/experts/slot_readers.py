"""Threads that bring experts into slots without the interpreter (``kernels/run/slot_reader.py``).

Whoever decides what is read next hands it to them and goes on. What they cannot do, or what goes
wrong, is left to whoever asked, who has words for it.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from edgerun.backends.cpu.experts.protocol import Read
from edgerun.files.direct import DirectRead
from edgerun.kernels.host.huge_pages import TURNS_BYTES, ReadBuffer
from edgerun.kernels.host.turns import take_short_turns
from edgerun.kernels.jit.service import native_function
from edgerun.kernels.run.read_jobs import (
    ASKED,
    BELL,
    DONE,
    ENTRY,
    JOB_WORDS,
    NANOSECONDS,
    SLOT,
    STATE,
    STOP,
)

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Job:
    """How an expert is read and put in order.

    Attributes:
        words: int64, those of ``read_jobs.py`` that are alike every time.
        read: how the system is asked.
        nbytes: bytes of the expert.
        steps: what ``words`` has the address of.
    """

    words: NDArray[np.int64]
    read: DirectRead
    nbytes: int
    steps: NDArray[np.int64]

    @classmethod
    def of(cls, read: DirectRead, steps: NDArray[np.int64], matrices: int) -> Job:
        """Takes the read and what ``SlotFiller.steps`` says of an expert of so many matrices."""
        place = read.descriptor, read.offset, read.span, read.skipped, read.needed
        words = np.array([*place, steps.ctypes.data, len(steps), matrices], np.int64)
        return cls(words, read, read.needed - read.skipped, steps)


class SlotReaders:
    """Some threads, each of which brings one expert at a time."""

    def __init__(self, count: int) -> None:
        """Takes how many there are to be; none is started yet."""
        count = min(count, STOP)  # numbers of jobs are bytes, and this one has a meaning
        self._count, self._room = count, 0
        self._jobs: NDArray[np.int64] = np.zeros((count, JOB_WORDS), np.int64)
        self._asked: list[Read | None] = []  # for each thread, a job
        self._bring = native_function("slot-reader", 4, result=True)
        self._threads: list[threading.Thread] = []
        self._pipe: tuple[int, int] | None = None

    def start(self, room: int, owner: object) -> None:
        """Starts the threads, or fewer where the system has no more, or no memory for them.

        Args:
            room: bytes that a read may have.
            owner: of the memory that jobs name: it lives as long as a thread, which may come back
                from its disk long after everybody else has gone.
        """
        try:
            self._pipe, self._room = os.pipe(), max(room, TURNS_BYTES)
        except OSError as error:
            logger.info("no threads bring experts into slots: %s", error)
            return
        for index in range(self._count):
            name = f"edgerun-slots-{index}"
            try:
                # Here, for a thread without memory would leave what it is asked for undone.
                memory = np.frombuffer(ReadBuffer().take(self._room), np.uint8)
                arguments = self._bring, self._pipe[0], self._jobs, memory, owner
                thread = threading.Thread(target=_work, args=arguments, daemon=True, name=name)
                thread.start()
            except (RuntimeError, MemoryError, OSError):
                logger.info("%d threads bring experts into slots, not %d", index, self._count)
                break
            self._threads.append(thread)
            self._asked.append(None)

    def ask(self, read: Read, job: Job, slot: int, entry: int, bell: int) -> bool:
        """Has a read done, if there is a thread for it; whether it will be.

        Args:
            read: that is asked for.
            job: what there is to do.
            slot: address of its slot.
            entry: address of the word that gets that of the slot.
            bell: a descriptor that gets a byte in the end.
        """
        is_possible = job.read.file.is_direct and job.read.span <= self._room
        if not is_possible or self._pipe is None or None not in self._asked:
            return False
        number = self._asked.index(None)
        words = self._jobs[number]
        words[: len(job.words)] = job.words
        words[SLOT], words[ENTRY], words[BELL], words[STATE] = slot, entry, bell, ASKED
        self._asked[number] = read
        os.write(self._pipe[1], bytes([number]))
        return True

    def answers(self) -> Iterator[tuple[Read, bool, float]]:
        """Reads that are done with, whether the expert is in its slot, and seconds of the disk.

        Each is told once; those that are not taken are told the next time.
        """
        for number, read in enumerate(self._asked):
            if read is not None and (state := self._jobs[number, STATE]) != ASKED:
                self._asked[number] = None
                yield read, bool(state == DONE), int(self._jobs[number, NANOSECONDS]) / 1e9

    def close(self, timeout_s: float) -> bool:
        """Ends the threads; whether all have ended within that time."""
        threads, self._threads = self._threads, []
        for _ in threads:
            assert self._pipe is not None
            os.write(self._pipe[1], bytes([STOP]))
        end = time.monotonic() + timeout_s
        for thread in threads:
            thread.join(max(0.0, end - time.monotonic()))
        if any(thread.is_alive() for thread in threads):
            return False
        self.close_pipe()
        return True

    def close_pipe(self) -> None:
        """Closes the pipe where no thread is left that looks at it, as in a forked child."""
        pipe, self._pipe = self._pipe, None
        for descriptor in pipe or ():
            os.close(descriptor)


def _work(
    bring: Callable[..., int],
    pipe: int,
    jobs: NDArray[np.int64],
    memory: NDArray[np.uint8],
    owner: object,
) -> None:
    take_short_turns()
    while not bring(pipe, jobs.ctypes.data, memory.ctypes.data, len(memory)):
        pass
