"""Native programs: a list of kernel calls that several threads run without Python in between.

An instruction is a compiled kernel ``void(intp arguments, intp chunk)``, a block of int64
arguments and a number of chunks. All threads walk the same list and take chunks from a shared
counter, so a thread that loses its core delays nobody: the others take its share. An
instruction waits for earlier ones only where buffers demand it, and what one thread can do alone
it does without a wait. ``runner.py`` has the code that the threads execute.
"""

from __future__ import annotations

import atexit
import logging
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgerun.forks import each_in_forked_child
from edgerun.kernels.jit.service import compiled, native_function
from edgerun.kernels.run.instructions import Instruction, last_of_group
from edgerun.kernels.run.table import COLUMNS, COUNTER_BYTES, DIVIDE, LAST, SIZE, TIMES

logger = logging.getLogger(__name__)

FRAME_WORDS = 88
CACHE_LINE_WORDS = 8
MOST_PROGRAMS = 256  # that a team keeps alive


class Program:
    """Instructions bound to their buffers, ready to run."""

    def __init__(
        self,
        instructions: Sequence[Instruction],
        keep: Sequence[Any],
        frame: NDArray[np.int64] | None = None,
    ) -> None:
        """Builds the instruction table.

        Args:
            instructions: in order of execution.
            keep: objects whose memory the instructions point to.
            frame: int64 ``[FRAME_WORDS]``, the quantities that chunk counts depend on; made here
                unless instructions read it too.
        """
        self.instructions = list(instructions)
        self.keep = list(keep)
        self.frame = np.zeros(FRAME_WORDS, np.int64) if frame is None else frame
        rows = [
            (
                *(step.function, step.arguments.ctypes.data),
                *(step.size, step.times, step.divide, step.at_once, last),
            )
            for step, last in zip(instructions, last_of_group(instructions), strict=True)
        ]
        self.table = np.array(rows, np.int64).reshape(-1, COLUMNS)
        self.counters = _lines(len(rows), COUNTER_BYTES // 8)
        # As the native side takes them; asking NumPy takes a microsecond each.
        counters, frame_ = self.counters.ctypes.data, self.frame.ctypes.data
        self.addresses = (self.table.ctypes.data, len(self.table), counters, frame_)

    def waits(self) -> int:
        """How often all threads wait for each other, with the quantities that are in the frame."""
        sizes, times = self.frame[self.table[:, SIZE]], self.table[:, TIMES]
        chunks = -(-sizes * times // self.table[:, DIVIDE])
        shared = chunks > (times == 1)  # as the native side decides
        return len(np.unique(self.table[shared, LAST]))


class ThreadTeam:
    """Worker threads that help the calling thread to run programs.

    Workers spin for a fraction of a millisecond after a run, doze for some and then sleep. A team
    keeps the programs it ran alive, because a worker may look at them a little longer than the run
    lasts; ``settle`` ends that. In a forked child the workers start anew with the next run.
    """

    def __init__(self, threads: int) -> None:
        """Makes a team of ``threads - 1`` workers and whoever calls ``run``."""
        self.threads = threads
        self._closed = False
        self._settled = 0  # the last run that nobody can join any more
        self._workers: list[threading.Thread] = []
        self._is_ready = False
        self._programs: set[Program] = set()  # that a worker may look at
        self._master: Callable[..., Any]
        # Requested now and waited for when something is to run, so that both are compiled while
        # other kernels are.
        for name in ("runner-master", "runner-worker"):
            compiled(name)
        self._reset()
        _TEAMS.add(self)

    def run(self, program: Program) -> None:
        """Runs a program to its end."""
        with self._lock:
            if program not in self._programs:
                if len(self._programs) == MOST_PROGRAMS:
                    self._settle()
                self._programs.add(program)
            if not self._is_ready:
                self._start()
            try:
                with self._state:
                    self._run += 1
                    if self._sleeping:
                        self._asleep.notify_all()
                self._master(self._control_address, *program.addresses, self._run)
            except BaseException:  # Ctrl-C, perhaps before the run began: nobody is to wait for it
                self._settled = self._run
                raise

    def settle(self) -> None:
        """Waits until no worker can still look at a program that has ended."""
        with self._lock:
            self._settle()

    def close(self) -> None:
        """Ends the workers; calling it twice is allowed, running a program after it is not."""
        self.settle()
        with self._state:
            self._closed = True
            self._asleep.notify_all()
        if threading.current_thread() not in self._workers:  # a worker may collect its own team
            for worker in self._workers:
                if worker.is_alive():  # Ctrl-C may have come before it began
                    worker.join()
        self._workers, self._is_ready = [], False

    def _settle(self) -> None:
        with self._state:  # also a barrier between the store and the loads below
            self._control[0, 0] = -1
            self._settled = self._run
        while not self._idle[:, 0].all():
            time.sleep(0)
        self._programs.clear()

    def _reset(self) -> None:
        """Begins anew, as a forked child has to: the threads are gone, and locks may stay held."""
        self._control = _lines(1, 2 * CACHE_LINE_WORDS)
        self._control_address = self._control.ctypes.data
        self._idle = _lines(self.threads, 2 * CACHE_LINE_WORDS)
        self._idle[:] = 1
        self._run = 0
        self._settled = 0
        self._sleeping = 0
        self._lock = threading.Lock()
        # Taken and left by itself, because Ctrl-C between a condition's own functions and the
        # lock beneath would leave it taken for ever.
        self._state = threading.RLock()
        self._asleep = threading.Condition(self._state)
        self._programs = set()
        self._workers, self._is_ready = [], False

    def _start(self) -> None:
        if self._closed:
            raise RuntimeError("the thread team is closed")
        self._master = native_function("runner-master", 6, result=False)
        work = native_function("runner-worker", 3, result=True)
        # After Ctrl-C this goes on with the next worker: the last may have begun or not, and no two
        # may have the same idle word.
        for index in range(len(self._workers) + 1, self.threads):
            worker = threading.Thread(
                target=self._work, args=(work, index), daemon=True, name=f"edgerun-{index}"
            )
            self._workers.append(worker)
            try:
                worker.start()
            except RuntimeError:  # the system has no more; whoever is there takes all chunks
                self._workers.pop()
                logger.info("%d threads compute, not %d", index, self.threads)
                break
        self._is_ready = True

    def _work(self, work: Callable[[int, int, int], int], index: int) -> None:
        control, idle = self._control_address, self._idle[index].ctypes.data
        last = 0
        while True:
            last = work(control, idle, last)
            with self._state:
                self._sleeping += 1
                # A worker that woke up too late finds its run settled and waits for another.
                while self._run <= max(last, self._settled) and not self._closed:
                    self._asleep.wait()
                self._sleeping -= 1
                if self._closed:
                    return


def _lines(count: int, words: int) -> NDArray[np.int64]:
    """Zeroed int64 ``[count, words]`` that starts on a cache line."""
    raw = np.zeros(count * words + CACHE_LINE_WORDS, np.int64)
    start = -raw.ctypes.data // 8 % CACHE_LINE_WORDS
    return raw[start : start + count * words].reshape(count, words)


_TEAMS = each_in_forked_child(ThreadTeam._reset)


def _close_all() -> None:
    """Ends all workers before the interpreter goes: they must not outlive it."""
    for team in list(_TEAMS):
        team.close()


atexit.register(_close_all)
