"""Identifies the processor by what LLVM looks at, so that LLVM need not be asked at every start.

Code compiled for one set of answers runs wherever the answers are the same. On x86-64 the
instruction ``cpuid`` tells which processor this is and what it can do; on 64-bit ARM Linux tells
that, and which cores there are. On other systems LLVM's own words identify the processor.

Source: Intel 64 and IA-32 Architectures Software Developer's Manual, volume 2A, "CPUID"; Linux,
``Documentation/arch/arm64/elf_hwcaps.rst``; LLVM, ``llvm/lib/TargetParser/Host.cpp``.
"""

from __future__ import annotations

import ctypes
import struct
from functools import cache
from pathlib import Path

from edgerun.kernels.host.arm import HWCAP, HWCAP2, auxiliary, linux_machine
from edgerun.kernels.host.code_memory import place

# void query(uint32 leaf, uint32 subleaf, uint32 registers[4]), System V calling convention.
QUERY = bytes.fromhex(
    "53 49 89 d0"  # push rbx; mov r8, rdx
    "89 f8 89 f1 0f a2"  # mov eax, edi; mov ecx, esi; cpuid
    "41 89 00 41 89 58 04"  # mov [r8], eax; mov [r8+4], ebx
    "41 89 48 08 41 89 50 0c"  # mov [r8+8], ecx; mov [r8+12], edx
    "5b c3"  # pop rbx; ret
)
# uint64 enabled(): register states that the system saves.
ENABLED = bytes.fromhex(
    "31 c9 0f 01 d0"  # xor ecx, ecx; xgetbv
    "48 c1 e2 20 48 09 d0 c3"  # shl rdx, 32; or rax, rdx; ret
)
EXTENDED = 0x80000000
# Leaf, subleaf and which registers count (a, b, c, d): others differ from core to core or with
# what runs at the moment.
LEAVES = (
    (0x1, 0, (0, 2, 3)),
    (0x7, 0, (0, 1, 2, 3)),
    (0x7, 1, (0, 1, 2, 3)),
    (0xD, 1, (0,)),
    (0x14, 0, (1,)),
    (0x19, 0, (1,)),
    (0x1E, 1, (0,)),
    (0x24, 0, (1,)),
    (0x80000001, 0, (2, 3)),
    (0x80000008, 0, (1,)),
)
OSXSAVE = 1 << 27  # in register c of leaf 1: xgetbv may be used
INTEL = "GenuineIntel"
CPUINFO = Path("/proc/cpuinfo")
CORE_NAMES = (b"CPU implementer", b"CPU variant", b"CPU part", b"Features")


@cache
def identity() -> bytes | None:
    """What tells processors apart; None where it is not known how to ask."""
    asked = {"x86_64": _answers_of_cpuid, "aarch64": _names_of_cores}.get(linux_machine())
    return asked() if asked else None


def vendor() -> str:
    """Who made an x86 processor, as ``cpuid`` says it: ``INTEL``, say; empty for any other."""
    told = identity() if linux_machine() == "x86_64" else None
    return (told[4:8] + told[12:16] + told[8:12]).decode("ascii", "replace") if told else ""


def _names_of_cores() -> bytes:
    try:
        lines = CPUINFO.read_bytes().splitlines()
    except OSError:
        lines = []
    names = sorted({line for line in lines if line.startswith(CORE_NAMES)})
    return b"\n".join([struct.pack("<QQ", auxiliary(HWCAP), auxiliary(HWCAP2)), *names])


def _answers_of_cpuid() -> bytes | None:
    try:
        start = place(len(QUERY) + len(ENABLED), lambda _: QUERY + ENABLED)
    except OSError:  # LLVM would be refused as well
        return None
    kind = ctypes.CFUNCTYPE(None, ctypes.c_uint32, ctypes.c_uint32, ctypes.c_void_p)
    query, registers = kind(start), (ctypes.c_uint32 * 4)()

    def ask(leaf: int, subleaf: int) -> tuple[int, ...]:
        query(leaf, subleaf, ctypes.addressof(registers))
        return tuple(registers)

    basic, extended = ask(0, 0), ask(EXTENDED, 0)
    words = [*basic, extended[0]]
    for leaf, subleaf, counting in LEAVES:
        most = extended[0] if leaf >= EXTENDED else basic[0]
        answer = ask(leaf, subleaf) if leaf <= most else (0,) * 4
        words += [answer[index] for index in counting]
    states = 0
    if ask(1, 0)[2] & OSXSAVE:
        states = ctypes.CFUNCTYPE(ctypes.c_uint64)(start + len(QUERY))()
    return struct.pack(f"<{len(words)}IQ", *words, states)
