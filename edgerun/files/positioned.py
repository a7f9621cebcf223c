"""Reads at a place of a file, and has memory that goes back to the system: each with a twin.

The twins are for systems that lack the Unix calls.
"""

from __future__ import annotations

import mmap
import os


def read_at(descriptor: int, out: memoryview, offset: int) -> int:
    """Reads bytes from a place of a file; how many, 0 at its end.

    Systems without such a call move the file's position, which nobody else may use then.
    """
    if hasattr(os, "preadv"):
        return os.preadv(descriptor, [out], offset)
    os.lseek(descriptor, offset, os.SEEK_SET)
    content = os.read(descriptor, len(out))
    out[: len(content)] = content
    return len(content)


def memory_apart(size: int) -> mmap.mmap:
    """Memory that is given back as soon as nobody needs it, unlike the heap's."""
    if hasattr(mmap, "MAP_ANONYMOUS"):  # private, for shared memory is a file to Linux
        return mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    return mmap.mmap(-1, size)
