"""What Linux says of a 64-bit ARM processor.

Source: Linux, ``Documentation/arch/arm64/elf_hwcaps.rst``.
"""

from __future__ import annotations

import ctypes
import os
import struct
import sys
from collections.abc import Callable

# Entries of the auxiliary vector, and what their bits mean, by LLVM's names.
HWCAP, HWCAP2 = 16, 26
ARM_FEATURES = {
    "neon": (HWCAP, 1),
    "lse": (HWCAP, 8),
    "dotprod": (HWCAP, 20),
    "i8mm": (HWCAP2, 13),
}


def linux_machine() -> str:
    """The architecture of a 64-bit process on Linux; empty on other systems."""
    if not sys.platform.startswith("linux") or struct.calcsize("P") != 8:
        return ""
    return os.uname().machine


def arm_features(ask: Callable[[int], int] | None = None) -> frozenset[str] | None:
    """LLVM's names of the features that kernels use, on 64-bit ARM Linux; None elsewhere.

    Args:
        ask: tells an entry of the auxiliary vector; the system unless given.
    """
    if ask is None and linux_machine() != "aarch64":
        return None
    ask = ask or auxiliary
    return frozenset(name for name, (word, bit) in ARM_FEATURES.items() if ask(word) >> bit & 1)


def auxiliary(entry: int) -> int:
    """A number of the auxiliary vector."""
    ask = ctypes.CDLL(None).getauxval
    ask.argtypes, ask.restype = [ctypes.c_ulong], ctypes.c_ulong
    return int(ask(entry))
