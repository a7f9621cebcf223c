"""The system's permission to use the tile registers of AMX.

Linux saves their 8 KB only for processes that asked for them, once, for all their threads:
``arch_prctl(ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA)``, since version 5.16 (Documentation/
arch/x86/xstate.rst). Without permission the first instruction that touches a tile ends the process.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import sys
from collections.abc import Callable
from functools import cache
from typing import TypeAlias

Syscall: TypeAlias = Callable[[int, int, int], int]  # number and two arguments to 0 or an errno
ARCH_PRCTL = 158
ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA = 0x1023, 18


@cache
def tile_refusal() -> str:
    """Asks for permission; why this process may not use tiles, or nothing if it may."""
    return ask_for_tiles(linux_syscall())


def ask_for_tiles(syscall: Syscall | None) -> str:
    """Why a system does not permit tiles; empty if it does.

    Args:
        syscall: the system's entry, or None where there is no such permission.
    """
    if syscall is None:
        return "permission for AMX tiles is known of Linux on x86-64 only"
    error = syscall(ARCH_PRCTL, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA)
    if error == errno.EINVAL:
        return "the system knows no permission for AMX tiles: Linux 5.16 or later is needed"
    return f"the system refuses AMX tiles: {os.strerror(error)}" if error else ""


def linux_syscall() -> Syscall | None:
    """The C library's ``syscall``; None on other systems."""
    if not sys.platform.startswith("linux") or platform.machine() != "x86_64":
        return None
    function = ctypes.CDLL(None, use_errno=True).syscall
    function.argtypes, function.restype = [ctypes.c_long] * 3, ctypes.c_long

    def syscall(number: int, first: int, second: int) -> int:
        return 0 if function(number, first, second) == 0 else ctypes.get_errno()

    return syscall
