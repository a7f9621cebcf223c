"""Reads at a place of a file, and has memory that goes back to the system: each with a twin.

The twins are for systems that lack the Unix calls.
"""

from __future__ import annotations

import mmap
import os
import threading
from contextlib import suppress

_position = threading.Lock()


def read_at(descriptor: int, out: memoryview, offset: int) -> int:
    """Reads bytes from a place of a file; how many, 0 at its end.

    Any number of threads may. Where there is no such call they move the file's position, one
    after the other.
    """
    if hasattr(os, "preadv"):
        return os.preadv(descriptor, [out], offset)
    with _position:
        os.lseek(descriptor, offset, os.SEEK_SET)
        content = os.read(descriptor, len(out))
    out[: len(content)] = content
    return len(content)


def open_again(descriptor: int, *, direct: bool) -> int | None:
    """Opens the file of a descriptor a second time, for reading.

    The two share no flags and no advice, as duplicates of a descriptor do. It is the same file even
    if another took its name.

    Args:
        descriptor: of an open file.
        direct: its content is to go past the system's cache (``O_DIRECT``).

    Returns:
        another descriptor, or None where the system or the file system has no such way.
    """
    flags = os.O_RDONLY | getattr(os, "O_CLOEXEC", 0)
    if direct and not hasattr(os, "O_DIRECT"):
        return None
    try:
        return os.open(f"/proc/self/fd/{descriptor}", flags | (os.O_DIRECT if direct else 0))
    except OSError:
        return None


def advise(descriptor: int, offset: int, length: int, advice: str) -> None:
    """Tells the system how a piece of a file will be used, where it and the file system listen.

    Args:
        descriptor: of the file.
        offset: of the piece.
        length: of the piece; 0 up to the end.
        advice: ``"RANDOM"``, nothing is to be read ahead, or ``"DONTNEED"``, it may leave the
            system's cache.
    """
    if hasattr(os, "posix_fadvise"):
        with suppress(OSError):
            os.posix_fadvise(descriptor, offset, length, getattr(os, f"POSIX_FADV_{advice}"))


def memory_apart(size: int) -> mmap.mmap:
    """Memory that is given back as soon as nobody needs it, unlike the heap's."""
    if hasattr(mmap, "MAP_ANONYMOUS"):  # private, for shared memory is a file to Linux
        return mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    return mmap.mmap(-1, size)
