"""Memory that holds machine code, by the system's own calls.

It is never given back: worker threads may be inside the code until the very end of the process.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import platform
from collections.abc import Callable
from functools import cache
from typing import Any


def place(size: int, content: Callable[[int], bytes]) -> int:
    """Puts code into memory of its own, which is never writable and executable at a time.

    Args:
        size: bytes that it needs.
        content: the code for the address where it will begin, on a page.

    Returns:
        the address.

    Raises:
        OSError: the system gives no memory, or does not let it hold code.
    """
    if not hasattr(mmap, "PROT_EXEC"):
        raise OSError("this system gives memory for code in another way")
    library = _library()
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    address = library.mmap(None, size, mmap.PROT_READ | mmap.PROT_WRITE, flags, -1, 0)
    if address is None or address == ctypes.c_void_p(-1).value:
        raise _failure("map memory for code")
    code = content(address)
    ctypes.memmove(address, code, min(size, len(code)))
    if platform.machine() == "aarch64":
        _let_it_be_fetched(address, size)
    if library.mprotect(address, size, mmap.PROT_READ | mmap.PROT_EXEC):
        raise _failure("make code executable")
    return int(address)


def _let_it_be_fetched(address: int, size: int) -> None:
    """What was written as data may be older in the cache of instructions; not so on x86."""
    try:
        clear = ctypes.CDLL("libgcc_s.so.1")["__clear_cache"]
    except AttributeError as error:
        raise OSError("the compiler's library has no __clear_cache") from error
    clear(ctypes.c_void_p(address), ctypes.c_void_p(address + size))


def library_address(name: str) -> int:
    """Address of a function of the C library.

    Raises:
        OSError: it has none of that name.
    """
    try:
        return ctypes.cast(_library()[name], ctypes.c_void_p).value or 0
    except AttributeError as error:
        raise OSError(f"the C library has no {name}") from error


@cache
def _library() -> Any:
    library = ctypes.CDLL(None, use_errno=True)
    size, number = ctypes.c_size_t, ctypes.c_int
    library.mmap.argtypes = [ctypes.c_void_p, size, number, number, number, ctypes.c_long]
    library.mmap.restype = ctypes.c_void_p
    library.mprotect.argtypes = [ctypes.c_void_p, size, number]
    return library


def _failure(what: str) -> OSError:
    number = ctypes.get_errno()
    return OSError(number, f"cannot {what}: {os.strerror(number)}")
