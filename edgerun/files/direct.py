"""Reads pieces of a file of weights past the system's cache.

What is read once and then kept by ourselves has no business in the system's cache: it would take
memory that experts could have, and time to be copied through it. Where the file system has direct
reads (``O_DIRECT``) they are used. Their offset, length and memory must be aligned, so a piece is
read from the multiple of ``ALIGNMENT`` before it to the one after it; slabs of large experts
begin at multiples, so nothing is read in vain. Elsewhere pieces are read as usual, and the system
is told that it need not keep them.
"""

from __future__ import annotations

import errno
import logging
import os
import weakref
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from edgerun.errors import BackendError
from edgerun.files.positioned import advise, open_again, read_at

logger = logging.getLogger(__name__)

ALIGNMENT = 4096  # covers blocks of 512 bytes, too


@dataclass(frozen=True, slots=True)
class DirectRead:
    """What to ask the system for to have a piece of a file.

    Attributes:
        file: who says whether there still are such reads (``is_direct``).
        descriptor: of the file, open for direct reads.
        offset: where the read begins, a multiple of ``ALIGNMENT``.
        span: bytes to ask for, likewise.
        skipped: bytes from ``offset`` to the piece.
        needed: bytes from ``offset`` to the end of the piece, which is not there with fewer.
    """

    file: DirectFile
    descriptor: int
    offset: int
    span: int
    skipped: int
    needed: int


class DirectFile:
    """A file of weights, for any number of threads that read at a time.

    It stays open as long as somebody holds this.

    Attributes:
        is_direct: whether reads go past the system's cache; becomes False when the file system
            refuses the first one.
    """

    def __init__(self, descriptor: int, check: Callable[[], None], *, direct: bool = True) -> None:
        """Opens a file once more.

        Args:
            descriptor: of the file, which the caller goes on owning.
            check: raises a ``BackendError`` if the file is not what it was.
            direct: False reads through the system's cache, as where direct reads are refused.
        """
        self._check = check
        again = open_again(descriptor, direct=False)
        self._buffered = os.dup(descriptor) if again is None else again
        weakref.finalize(self, os.close, self._buffered)
        if again is not None:  # advice to a duplicate would be to the original, too
            advise(again, 0, 0, "RANDOM")
        self._direct = open_again(descriptor, direct=True) if direct else None
        if self._direct is not None:
            weakref.finalize(self, os.close, self._direct)
        self.is_direct = self._direct is not None

    def read_into(self, offset: int, length: int, buffer: memoryview) -> memoryview:
        """Reads a piece of the file; another thread may read another one into other memory.

        A read that a signal interrupts goes on, unless the signal's handler raises.

        Args:
            offset: of the first byte.
            length: in bytes.
            buffer: has ``span(offset, length)`` bytes or more, and begins at a multiple of
                ``ALIGNMENT``, as memory of ``memory_apart`` does.

        Returns:
            the part of the buffer that holds the piece: all of it from the first byte on if
            ``offset`` is a multiple of ``ALIGNMENT``.

        Raises:
            BackendError: the file was changed or cut off since it was opened, or is gone.
        """
        _check_buffer(offset, length, buffer)
        skipped = offset % ALIGNMENT
        try:
            if not (self.is_direct and self._read_direct(offset, length, buffer)):
                self._read_buffered(offset, buffer[skipped : skipped + length])
            self._check()
        except OSError as error:
            raise BackendError(
                f"the file of weights cannot be read any more, at byte {offset}: {error.strerror}; "
                "see whether its disk is still there, and load the model again"
            ) from error
        return buffer[skipped : skipped + length]

    def direct_read(self, offset: int, length: int) -> DirectRead | None:
        """How others can read a piece, who ``check`` afterwards; None where they cannot so."""
        if self._direct is None or not self.is_direct:
            return None
        skipped = offset % ALIGNMENT
        start, size = offset - skipped, span(offset, length)
        return DirectRead(self, self._direct, start, size, skipped, skipped + length)

    def check(self) -> None:
        """Checks that the file is what it was when it was opened.

        Raises:
            BackendError: it is not.
        """
        self._check()

    def forget(self, offset: int, length: int) -> None:
        """Lets the system's cache forget a piece, so that the disk is asked for it again."""
        start = offset - offset % ALIGNMENT
        advise(self._buffered, start, span(offset, length), "DONTNEED")

    def _read_direct(self, offset: int, length: int, buffer: memoryview) -> bool:
        """Reads everything from the multiple before to the one after; False if it is refused."""
        assert self._direct is not None
        start, needed = offset - offset % ALIGNMENT, offset % ALIGNMENT + length
        room, done = buffer[: span(offset, length)], 0
        while done < needed:
            try:
                count = read_at(self._direct, room[done:], start + done)
            except OSError as error:
                if error.errno != errno.EINVAL:
                    raise
                self.is_direct = False
                logger.info("the file system refuses direct reads, so others are made")
                return False
            if done + count >= needed:
                break
            count -= count % ALIGNMENT  # a read may be short, and the next one must be aligned
            if not count:
                raise self._end(start + done)
            done += count
        return True

    def _read_buffered(self, offset: int, out: memoryview) -> None:
        """Reads through the system's cache, and lets that forget what was read."""
        done = 0
        while done < len(out):
            count = read_at(self._buffered, out[done:], offset + done)
            if not count:
                raise self._end(offset + done)
            done += count
        self.forget(offset, len(out))

    def _end(self, offset: int) -> BackendError:
        """What to raise where a file ends too early."""
        self._check()
        return BackendError(f"the file of weights ends at byte {offset}: load the model again")


def span(offset: int, length: int) -> int:
    """Bytes from the multiple of ``ALIGNMENT`` before a piece to the one after it.

    >>> span(4096, 4096), span(4095, 2), span(0, 1)
    (4096, 8192, 4096)
    """
    return -(-(offset + length) // ALIGNMENT) * ALIGNMENT - offset // ALIGNMENT * ALIGNMENT


def _check_buffer(offset: int, length: int, buffer: memoryview) -> None:
    needed = span(offset, length)
    if offset < 0 or length < 1 or len(buffer) < needed:
        raise ValueError(f"{length} bytes from {offset} on need {needed}, not {len(buffer)}")
    if np.frombuffer(buffer, np.uint8).ctypes.data % ALIGNMENT:
        raise ValueError(f"the memory to read into must begin at a multiple of {ALIGNMENT}")
