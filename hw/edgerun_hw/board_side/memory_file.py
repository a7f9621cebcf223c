"""Maps a memory file that two processes share.

The standard library's ``mmap`` keeps a descriptor open for every map (until Python 3.13), and a
model has more buffers than a process may have descriptors.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import weakref

import numpy as np
from numpy.typing import NDArray

_LIBC = ctypes.CDLL(None, use_errno=True)
_LIBC.mmap.restype = ctypes.c_void_p
_LIBC.mmap.argtypes = (
    *(ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int),
    ctypes.c_long,
)
_LIBC.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
_FAILED = ctypes.c_void_p(-1).value


def map_file(file: int, nbytes: int) -> NDArray[np.uint8]:
    """Maps the first ``nbytes`` bytes of ``file``, to read and write, shared.

    Returns:
        uint8 [nbytes]; unmapped when no array refers to it any more.

    Raises:
        OSError: the system refuses.
    """
    access = mmap.PROT_READ | mmap.PROT_WRITE
    address = _LIBC.mmap(None, nbytes, access, mmap.MAP_SHARED, file, 0)
    if address == _FAILED:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    memory = (ctypes.c_uint8 * nbytes).from_address(address)
    weakref.finalize(memory, _LIBC.munmap, address, nbytes).atexit = False
    array: NDArray[np.uint8] = np.ctypeslib.as_array(memory)
    return array
