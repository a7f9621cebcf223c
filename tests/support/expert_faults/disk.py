"""A disk that does what a test says: it fails, hangs, is slow, or brings less than asked for."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeAlias

from edgerun.backends.cpu.experts import source
from edgerun.files import direct
from edgerun.files.positioned import read_at

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
