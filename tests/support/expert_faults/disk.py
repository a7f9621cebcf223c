"""A disk that does what a test says: it fails, hangs, is slow, or brings less than asked for."""

from __future__ import annotations

import ctypes
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from edgerun.backends.cpu.experts import slot_readers, source
from edgerun.files import direct
from edgerun.files.positioned import read_at
from edgerun.kernels.jit.service import native_function
from edgerun.kernels.run.read_jobs import (
    BELL,
    DONE,
    ENTRY,
    FILE,
    JOB_BYTES,
    JOB_WORDS,
    MATRICES,
    NEEDED,
    OFFSET,
    SKIPPED,
    SLOT,
    SPAN,
    STATE,
    STEP_COUNT,
    STEPS,
    STOP,
    UNDONE,
)

# Descriptor, memory and offset of a read; returns how many bytes came, None for a usual read.
Act: TypeAlias = Callable[[int, memoryview, int], int | None]


class Disk:
    """Takes the place of the system's reads of weights in this process."""

    def __init__(self) -> None:
        """It begins as a disk without faults."""
        self.reads = 0
        self._lock = threading.Lock()
        self._act: Act | None = None
        self._first = 0
        direct.read_at = self._read_at
        slot_readers.native_function = lambda *_, **__: self._bring

    @contextmanager
    def faulty(self, act: Act, read: int = 1) -> Iterator[None]:
        """From some read on, counted from now, all of them do what ``act`` does."""
        self._first, self._act = self.reads + read, act
        try:
            yield
        finally:
            self._act = None

    def _read_at(self, descriptor: int, out: memoryview, offset: int) -> int:
        with self._lock:
            self.reads += 1
            act = self._act if self.reads >= self._first else None
        count = act(descriptor, out, offset) if act else None
        return read_at(descriptor, out, offset) if count is None else count

    def _bring(self, pipe: int, jobs: int, memory: int, size: int) -> int:
        """What ``kernels/run/slot_reader.py`` does, with this disk's reads."""
        while (number := os.read(pipe, 1)[0]) != STOP:
            words = _words(jobs + number * JOB_BYTES, JOB_WORDS)
            state, bell = self._state(words, memory), int(words[BELL])
            words[STATE] = state
            with suppress(BlockingIOError):
                os.write(bell, b"\0")
        return 1

    def _state(self, words: NDArray[np.int64], memory: int) -> int:
        read = (ctypes.c_uint8 * int(words[SPAN])).from_address(memory)
        try:
            count = self._read_at(int(words[FILE]), memoryview(read).cast("B"), int(words[OFFSET]))
        except Exception:  # the reader that asked has words for it
            return UNDONE
        if count < words[NEEDED]:
            return UNDONE
        fill = native_function("slot-fill", 4, result=True)
        steps, slot = map(int, words[[STEPS, STEP_COUNT]]), int(words[SLOT])
        if fill(*steps, memory + int(words[SKIPPED]), slot) & (1 << int(words[MATRICES])) - 1:
            return UNDONE
        native_function("pool-publish", 2, result=False)(int(words[ENTRY]), slot)
        return DONE


def _words(address: int, count: int) -> NDArray[np.int64]:
    """Words in memory."""
    return np.ctypeslib.as_array((ctypes.c_int64 * count).from_address(address))


@contextmanager
def by_readers() -> Iterator[None]:
    """Readers do meanwhile themselves what they hand to others."""
    before = slot_readers.SlotReaders.ask
    slot_readers.SlotReaders.ask = lambda *_: False  # type: ignore[method-assign]
    try:
        yield
    finally:
        slot_readers.SlotReaders.ask = before  # type: ignore[method-assign]


@contextmanager
def opened(*, directly: bool) -> Iterator[None]:
    """Models that are loaded meanwhile read so, whatever was measured of the disk."""

    class File(direct.DirectFile):
        def __init__(self, descriptor: int, check: Callable[[], None], *, direct: bool) -> None:
            super().__init__(descriptor, check, direct=directly)

    before, source.DirectFile = source.DirectFile, File  # type: ignore[misc]
    try:
        yield
    finally:
        source.DirectFile = before  # type: ignore[misc]


def failing(number: int) -> Act:
    """Reads fail with an error of the system."""

    def act(descriptor: int, out: memoryview, offset: int) -> int | None:
        raise OSError(number, os.strerror(number))

    return act


def raising(error: type[Exception]) -> Act:
    """Reads fail with what no disk says."""

    def act(descriptor: int, out: memoryview, offset: int) -> int | None:
        raise error("of all things")

    return act


def ending() -> Act:
    """The file seems to end."""
    return lambda descriptor, out, offset: 0


def short(most: int) -> Act:
    """Reads bring so many bytes at most."""
    return lambda descriptor, out, offset: read_at(descriptor, out[:most], offset)


def slow(seconds: float) -> Act:
    """Reads take longer."""

    def act(descriptor: int, out: memoryview, offset: int) -> int | None:
        time.sleep(seconds)
        return None

    return act


def hanging(until: threading.Event) -> Act:
    """Reads do not come back before something happens."""

    def act(descriptor: int, out: memoryview, offset: int) -> int | None:
        until.wait(60)
        return None

    return act


def once(action: Callable[[], object]) -> Act:
    """Something happens at the first of the reads, and they are as usual."""
    lock, done = threading.Lock(), [False]

    def act(descriptor: int, out: memoryview, offset: int) -> int | None:
        with lock:
            if not done[0]:
                done[0] = True
                action()
        return None

    return act
