"""Native programs: a list of kernel calls that several threads run without Python in between.

An instruction is a compiled kernel ``void(intp arguments, intp chunk)``, a block of int64
arguments and a number of chunks. All threads walk the same list and take chunks from a shared
counter, so a thread that loses its core delays nobody: the others take its share. An
instruction waits for earlier ones only where ``Program`` was told of a dependency.

The counters carry the number of the run in their upper half. A thread that wakes up late finds
a newer number, touches nothing and leaves.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from edgerun.kernels.machine import (
    atomic_add,
    atomic_load,
    atomic_store,
    call_chunk,
    compare_exchange,
    yield_processor,
)
from edgerun.kernels.word import word

# Columns of the instruction table.
FUNCTION, ARGUMENTS, SIZE, TIMES, DIVIDE, FENCE, COLUMNS = range(7)
COUNTER_BYTES = 128  # taken and done on two cache lines, against false sharing
SPINS_BEFORE_YIELD = 2_000
YIELDS_BEFORE_SLEEP = 400
FRAME_WORDS = 8


@dataclass(frozen=True, slots=True)
class Instruction:
    """One kernel call.

    Attributes:
        function: address of the compiled kernel.
        arguments: int64 block that the kernel reads; kept alive by the program.
        size: index into the frame of the quantity that decides the number of chunks.
        times: chunks per unit of that quantity before division.
        divide: units per chunk; chunks = ceil(frame[size] * times / divide).
        reads: names of buffers it reads.
        writes: names of buffers it writes.
        label: for traces.
    """

    function: int
    arguments: NDArray[np.int64]
    size: int
    times: int
    divide: int
    reads: frozenset[str]
    writes: frozenset[str]
    label: str


def fences(instructions: Sequence[Instruction]) -> list[bool]:
    """Whether each instruction must be complete, with all before it, before the next starts."""
    result = [False] * len(instructions)
    reads: set[str] = set()
    writes: set[str] = set()
    for index, step in enumerate(instructions):
        if step.reads & writes or step.writes & (reads | writes):
            result[index - 1] = True
            reads, writes = set(), set()
        reads |= step.reads
        writes |= step.writes
    if result:
        result[-1] = True
    return result


@njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def _take(counter: int, run: int, chunks: int) -> int:
    """Takes a chunk number, or -1 when none is left or the run is over."""
    while True:
        value = atomic_load(counter)
        if value >> 32 != run or value & 0xFFFFFFFF >= chunks:
            return -1
        if compare_exchange(counter, value, value + 1):
            return value & 0xFFFFFFFF


@njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def _wait(counter: int, target: int) -> None:
    """Waits until a counter reaches a value; lets other threads run when that takes long."""
    spins = 0
    while atomic_load(counter) < target:
        spins += 1
        if spins > SPINS_BEFORE_YIELD:
            yield_processor()


@njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def _run(table: int, count: int, counters: int, frame: int, run: int) -> None:
    """Executes a program; called by every thread with the same arguments."""
    start = 0
    for index in range(count):
        row = table + index * COLUMNS * 8
        function, arguments = word(row, FUNCTION), word(row, ARGUMENTS)
        units = word(frame, word(row, SIZE)) * word(row, TIMES)
        chunks = (units + word(row, DIVIDE) - 1) // word(row, DIVIDE)
        counter = counters + index * COUNTER_BYTES
        chunk = _take(counter, run, chunks)
        while chunk >= 0:
            call_chunk(function, arguments, chunk)
            atomic_add(counter + 64, 1)
            chunk = _take(counter, run, chunks)
        if word(row, FENCE):
            for earlier in range(start, index + 1):
                row = table + earlier * COLUMNS * 8
                units = word(frame, word(row, SIZE)) * word(row, TIMES)
                chunks = (units + word(row, DIVIDE) - 1) // word(row, DIVIDE)
                _wait(counters + earlier * COUNTER_BYTES + 64, (run << 32) + chunks)
            start = index + 1
            if atomic_load(counter) >> 32 != run:
                return


@njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def _master(control: int, table: int, count: int, counters: int, frame: int, run: int) -> None:
    """Publishes a run and takes part in it; returns when it is complete.

    The control block is a sequence lock: while its first word is negative the others change.
    """
    atomic_store(control, -run)
    for index in range(count):
        atomic_store(counters + index * COUNTER_BYTES, run << 32)
        atomic_store(counters + index * COUNTER_BYTES + 64, run << 32)
    atomic_store(control + 8, table)
    atomic_store(control + 16, count)
    atomic_store(control + 24, counters)
    atomic_store(control + 32, frame)
    atomic_store(control, run)
    _run(table, count, counters, frame, run)


@njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def _worker(control: int, idle: int, last: int) -> int:
    """Joins runs as they appear; returns the last run's number when none came for a while."""
    waits = 0
    while waits < SPINS_BEFORE_YIELD + YIELDS_BEFORE_SLEEP:
        run = atomic_load(control)
        if run > last:
            atomic_store(idle, 0)
            table, count = atomic_load(control + 8), atomic_load(control + 16)
            counters, frame = atomic_load(control + 24), atomic_load(control + 32)
            if atomic_load(control) == run:
                _run(table, count, counters, frame, run)
                last = run
                waits = 0
            atomic_store(idle, 1)
        else:
            waits += 1
            if waits > SPINS_BEFORE_YIELD:
                yield_processor()
    return last


class ThreadTeam:
    """Worker threads that help the calling thread to run programs.

    Workers spin for a fraction of a millisecond after a run and then sleep.
    """

    def __init__(self, threads: int) -> None:
        """Starts ``threads - 1`` workers."""
        self._control = np.zeros(8, np.int64)
        self._idle = np.ones((threads, 16), np.int64)
        self._run = 0
        self._lock = threading.Lock()
        self._asleep = threading.Condition()
        self._sleeping = 0
        self._closed = False
        self._workers = [
            threading.Thread(target=self._work, args=(index,), daemon=True, name=f"edgerun-{index}")
            for index in range(1, threads)
        ]
        for worker in self._workers:
            worker.start()

    @property
    def threads(self) -> int:
        """Threads that take part in a run, the caller included."""
        return len(self._workers) + 1

    def run(self, program: Program) -> None:
        """Runs a program to its end."""
        with self._lock:
            self._run += 1
            if self._sleeping:
                with self._asleep:
                    self._asleep.notify_all()
            _master(
                self._control.ctypes.data,
                program.table.ctypes.data,
                len(program.table),
                program.counters.ctypes.data,
                program.frame.ctypes.data,
                self._run,
            )

    def settle(self) -> None:
        """Waits until no worker can still look at a program that has ended."""
        with self._lock:
            self._control[0] = -1
            while not self._idle[1:, 0].all():
                threading.Event().wait(0.0005)

    def close(self) -> None:
        """Ends the workers."""
        self.settle()
        with self._asleep:
            self._closed = True
            self._asleep.notify_all()
        for worker in self._workers:
            worker.join()

    def _work(self, index: int) -> None:
        control, idle = self._control.ctypes.data, self._idle[index].ctypes.data
        last = 0
        while not self._closed:
            last = _worker(control, idle, last)
            with self._asleep:
                if self._closed or self._run > last:
                    continue
                self._sleeping += 1
                self._asleep.wait()
                self._sleeping -= 1


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
            (step.function, step.arguments.ctypes.data, step.size, step.times, step.divide, fence)
            for step, fence in zip(instructions, fences(instructions), strict=True)
        ]
        self.table = np.array(rows, np.int64).reshape(-1, COLUMNS)
        self.counters = np.zeros((len(rows), COUNTER_BYTES // 8), np.int64)
