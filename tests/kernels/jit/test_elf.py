"""Object files: read, moved and loaded, beside LLVM's own loader."""

from __future__ import annotations

import ctypes
import random
from typing import Any

import numpy as np
import pytest
from llvmlite import binding

from edgerun.kernels.host.code_memory import library_address, place
from edgerun.kernels.host.processor import linux_machine
from edgerun.kernels.jit import loader
from edgerun.kernels.jit.catalogue import compile_named, kernels
from edgerun.kernels.jit.elf import (
    MACHINES,
    Image,
    Relocation,
    UnknownObjectError,
    read_image,
)
from edgerun.kernels.jit.loader import load_by_llvm, load_object
from edgerun.kernels.jit.target import ENTRY

MACHINE = linux_machine()
X86_64, AARCH64 = MACHINES["x86_64"][1], MACHINES["aarch64"][1]
here = pytest.mark.skipif(MACHINE not in MACHINES, reason="object files of Linux")


@pytest.fixture(scope="module")
def gate() -> bytes:
    """A kernel with constants in memory."""
    return compile_named("gate", {"activation": "silu", "lanes": 8})


def run_gate(address: int) -> Any:
    rows = np.ones(1, np.int32)
    data = np.random.default_rng(1).standard_normal((2, 256)).astype(np.float32)
    gate, up, out = data[:1], data[1:], np.zeros((1, 256), np.float32)
    values = {"rows": rows, "gate": gate, "up": up, "out": out}
    numbers = {"gate_stride": 256, "up_stride": 256, "out_stride": 256, "width": 256, "pieces": 1}
    arguments = {name: array.ctypes.data for name, array in values.items()} | numbers
    block = np.array([arguments[name] for name in kernels()["gate"].signature.names], np.int64)
    ctypes.CFUNCTYPE(None, ctypes.c_int64, ctypes.c_int64)(address)(block.ctypes.data, 0)
    return out


@here
def test_code_gives_what_llvms_loader_gives(gate: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = run_gate(load_by_llvm(gate))
    monkeypatch.setattr(loader, "load_by_llvm", None)  # must not be needed
    assert np.abs(expected).max() > 0
    np.testing.assert_array_equal(run_gate(load_object(gate)), expected)


def test_every_kind_of_word_is_relocated() -> None:
    relocations = (
        Relocation(0, X86_64[1], 16, 4),  # absolute, 64 bits
        Relocation(8, X86_64[2], 16, -4),  # relative, 32 bits
        Relocation(12, X86_64[4], 16, 0),  # a call
        Relocation(16, X86_64[24], "outside", 1),  # relative, 64 bits
    )
    moved = Image(bytes(24), 0, relocations).at(0x1000, {"outside": 0x5000}.__getitem__)
    assert int.from_bytes(moved[0:8], "little") == 0x1000 + 16 + 4
    assert int.from_bytes(moved[8:12], "little") == 16 - 4 - 8
    assert int.from_bytes(moved[12:16], "little") == 16 - 12
    assert int.from_bytes(moved[16:24], "little") == 0x5000 + 1 - 0x1010


def test_a_target_too_far_for_its_word_is_refused() -> None:
    for word, near, far in (
        (X86_64[2], 0x1000 + (1 << 31) - 1, 0x1000 + (1 << 31)),
        (AARCH64[283], 0x1000 + (1 << 27) - 4, 0x1000 + (1 << 27)),  # a call
        (AARCH64[275], 0x1000 + (1 << 32) - 1, 0x1000 + (1 << 32)),  # a page
        (AARCH64[283], 0x1000 - (1 << 27), 0x1000 - (1 << 27) - 4),
        (AARCH64[286], 0x2008, 0x2004),  # a double word in two
    ):
        image = Image(bytes(8), 0, (Relocation(0, word, "far", 0),))
        image.at(0x1000, lambda name, near=near: near)
        with pytest.raises(UnknownObjectError, match="far is too far"):
            image.at(0x1000, lambda name, far=far: far)


@here
def test_calls_reach_the_c_library() -> None:
    address = library_address("abs")
    assert ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int)(address)(-5) == 5
    with pytest.raises(OSError, match="no_such_function"):
        library_address("no_such_function")


@here
def test_memory_of_code_cannot_be_written_any_more() -> None:
    address = place(4, lambda address: bytes(4))
    with open("/proc/self/maps") as lines:
        spans = [line.split()[:2] for line in lines]
    rights = [
        rights
        for span, rights in spans
        if int(span.split("-")[0], 16) <= address < int(span.split("-")[1], 16)
    ]
    assert rights == ["r-xp"]


@here
@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda data: b"", "broken"),
        (lambda data: b"MZ" + data[2:], "no relocatable ELF"),
        (lambda data: data[:18] + b"\x08\0" + data[20:], "no relocatable ELF"),  # for MIPS
        (lambda data: data[: len(data) // 2], "broken"),
    ],
)
def test_what_is_no_such_file_is_refused(change: Any, message: str, gate: bytes) -> None:
    with pytest.raises(UnknownObjectError, match=message):
        read_image(change(gate), ENTRY, MACHINE)


@here
def test_an_entry_that_is_missing_is_refused(gate: bytes) -> None:
    with pytest.raises(UnknownObjectError, match="broken: not enough"):
        read_image(gate, "other", MACHINE)


@here
def test_damaged_files_are_refused_or_stay_in_bounds(gate: bytes) -> None:
    chance = random.Random(1)
    for _ in range(2000):
        data = bytearray(gate)
        for _ in range(chance.choice((1, 2, 8))):
            data[chance.randrange(len(data))] = chance.randrange(256)
        try:
            image = read_image(bytes(data), ENTRY, MACHINE)
            assert len(image.at(0x10000, lambda name: 0)) <= 2 * len(data) + 3 * 4096
        except UnknownObjectError:
            pass


def test_what_is_not_understood_is_left_to_llvm(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*asked: Any) -> Image:
        raise UnknownObjectError("new")

    monkeypatch.setattr(loader, "read_image", refuse)
    monkeypatch.setattr(loader, "load_by_llvm", lambda data: 5)
    assert load_object(b"") == 5


# Constants of every width, and a call: as LLVM addresses them for 64-bit ARM.
CONSTANTS = {"i8": 1, "i16": 2, "i32": 4, "i64": 8, "<16 x i8>": 16}
ARM_SOURCE = """
target triple = "aarch64-unknown-linux-gnu"
{constants}
declare i32 @outside(i32)
define i32 @edgerun_entry(ptr %out) {{
{loads}
  %r = call i32 @outside(i32 5)
  %s = call i32 @outside(i32 %r)
  %t = add i32 %s, 1
  ret i32 %t
}}
"""
BASE, OUTSIDE = 0x55_1234_5000, 0x7F_1678_9ABC


def arm_object(code_model: str) -> bytes:
    """An object file for 64-bit ARM that loads each constant and stores it."""
    constants, loads = "", ""
    for index, (kind, size) in enumerate(CONSTANTS.items()):
        value = int.from_bytes(bytes([0xC0 + index]) * min(size, 8), "little")
        text = value if size < 16 else "<" + ", ".join(["i8 -60"] * 16) + ">"
        constants += f"@c{index} = internal constant {kind} {text}, align {size}\n"
        loads += f"  %v{index} = load volatile {kind}, ptr @c{index}\n"
        loads += f"  %p{index} = getelementptr i8, ptr %out, i64 {16 * index}\n"
        loads += f"  store {kind} %v{index}, ptr %p{index}\n"
    binding.initialize_all_targets()
    binding.initialize_all_asmprinters()
    target = binding.Target.from_triple("aarch64-unknown-linux-gnu")
    machine = target.create_target_machine(opt=0, jit=True, codemodel=code_model)
    module = binding.parse_assembly(ARM_SOURCE.format(constants=constants, loads=loads))
    return bytes(machine.emit_object(module))


def signed(value: int, bits: int) -> int:
    return value - (value >> (bits - 1) << bits)


def addresses_in(code: bytes, start: int) -> tuple[list[tuple[int, int]], list[int]]:
    """What 64-bit ARM code at ``start`` loads (address and bytes), and what it calls.

    Read from the instructions as the Arm Architecture Reference Manual has them: adrp, add and
    ldr of two, movz and movk of four, bl and blr.
    """
    loads, calls, registers = [], [], {}
    for offset in range(0, len(code), 4):
        word, pc = int.from_bytes(code[offset : offset + 4], "little"), start + offset
        target, source = word & 31, word >> 5 & 31
        if word & 0x9F000000 == 0x90000000:  # adrp
            pages = signed((word >> 5 & 0x7FFFF) << 2 | word >> 29 & 3, 21)
            registers[target] = (pc & ~4095) + (pages << 12)
        elif word & 0xFF800000 in (0xD2800000, 0xF2800000):  # movz, movk
            shift = 16 * (word >> 21 & 3)
            before = registers.get(target, 0) if word & 0x20000000 else 0
            registers[target] = before & ~(0xFFFF << shift) | (word >> 5 & 0xFFFF) << shift
        elif word & 0xFFC00000 == 0x91000000 and source in registers:  # add
            registers[target] = registers[source] + (word >> 10 & 4095)
        elif word & 0x3B400000 == 0x39400000 and source in registers:  # ldr and its kin
            scale = 4 if word & 0x04800000 == 0x04800000 else word >> 30
            loads.append((registers[source] + ((word >> 10 & 4095) << scale), 1 << scale))
        elif word & 0xFC000000 == 0x94000000:  # bl
            calls.append(pc + (signed(word & 0x3FFFFFF, 26) << 2))
        elif word & 0xFFFFFC1F == 0xD63F0000:  # blr
            calls.append(registers[source])
    return loads, calls


def landing(code: bytes, start: int, call: int) -> int:
    """Where a call ends up that may go by way of ``ldr x16, 8 ahead; br x16``."""
    place = call - start
    if not 0 <= place < len(code):
        return call
    assert code[place : place + 8] == bytes.fromhex("50000058 00021fd6")
    return int.from_bytes(code[place + 8 : place + 16], "little")


@pytest.mark.parametrize("code_model", ["small", "jitdefault"])
def test_arm_code_finds_its_constants_and_functions(code_model: str) -> None:
    image = read_image(arm_object(code_model), ENTRY, "aarch64")
    moved = image.at(BASE, {"outside": OUTSIDE}.__getitem__)
    loads, calls = addresses_in(moved, BASE)
    constants = {size: moved[at - BASE : at - BASE + size] for at, size in loads}
    assert [landing(moved, BASE, call) for call in calls] == [OUTSIDE] * 2
    assert constants == {
        size: bytes([0xC0 + index]) * size for index, size in enumerate(CONSTANTS.values())
    }


@pytest.mark.parametrize(
    "distance", [8, -8, 0xFF8, 0x1000, -0x1008, (1 << 32) - 0x2000, -(1 << 32)]
)
def test_arm_code_finds_what_is_far(distance: int) -> None:
    # In the middle of a page: adrp x0, x; ldr x1, [x0, x]; bl f
    words = (0x90000000, 0xF9400001, 0x94000000)
    code = bytes(0x800) + b"".join(word.to_bytes(4, "little") for word in words)
    call = max(-(1 << 27), min((1 << 27) - 4, distance))
    targets = {"x": BASE + 0x800 + distance, "f": BASE + 0x808 + call}
    kinds = zip((0x800, 0x804, 0x808), (275, 286, 283), "xxf", strict=True)
    moves = tuple(Relocation(place, AARCH64[kind], name, 0) for place, kind, name in kinds)
    moved = Image(code, 0, moves).at(BASE, targets.__getitem__)
    assert addresses_in(moved, BASE) == ([(targets["x"], 8)], [targets["f"]])


def test_absolute_and_relative_words_of_arm_are_those_of_x86() -> None:
    pairs = {257: 1, 261: 2, 260: 24}
    assert {arm: AARCH64[arm] for arm in pairs} == {arm: X86_64[x] for arm, x in pairs.items()}


def test_machines_that_are_not_known_are_left_to_llvm() -> None:
    with pytest.raises(UnknownObjectError, match="relocations of riscv64 are not known"):
        read_image(b"", ENTRY, "riscv64")
