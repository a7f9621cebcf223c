"""Object files: read, moved and loaded, beside LLVM's own loader."""

from __future__ import annotations

import ctypes
import random
import sys
from typing import Any

import numpy as np
import pytest

from edgerun.kernels.host.code_memory import library_address, place
from edgerun.kernels.jit import loader
from edgerun.kernels.jit.compiler import compile_object
from edgerun.kernels.jit.elf import Image, Relocation, Symbol, UnknownObjectError, read_image
from edgerun.kernels.jit.loader import ENTRY, load_by_llvm, load_object
from edgerun.kernels.jit.registry import kernels
from edgerun.kernels.lang.dot import X86

pytestmark = pytest.mark.skipif(
    not (X86 and sys.platform.startswith("linux")), reason="object files of Linux on x86-64"
)


@pytest.fixture(scope="module")
def gate() -> bytes:
    """A kernel with constants in memory."""
    return compile_object(kernels()["gate"].make(activation="silu", lanes=8))


def run_gate(address: int) -> Any:
    rows = np.ones(1, np.int32)
    data = np.random.default_rng(1).standard_normal((2, 256)).astype(np.float32)
    gate, up, out = data[:1], data[1:], np.zeros((1, 256), np.float32)
    values = {"rows": rows, "gate": gate, "up": up, "out": out}
    numbers = {"gate_stride": 256, "up_stride": 256, "out_stride": 256, "width": 256, "pieces": 1}
    known = {name: array.ctypes.data for name, array in values.items()} | numbers
    block = np.array([known[name] for name in kernels()["gate"].fields], np.int64)
    ctypes.CFUNCTYPE(None, ctypes.c_int64, ctypes.c_int64)(address)(block.ctypes.data, 0)
    return out


def test_code_gives_what_llvms_loader_gives(gate: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = run_gate(load_by_llvm(gate))
    monkeypatch.setattr(loader, "load_by_llvm", None)  # must not be needed
    assert np.abs(expected).max() > 0
    np.testing.assert_array_equal(run_gate(load_object(gate)), expected)


def test_every_kind_of_word_is_relocated() -> None:
    local, outside = Symbol(16, ""), Symbol(None, "outside")
    relocations = (
        Relocation(0, 1, local, 4),  # absolute, 64 bits
        Relocation(8, 2, local, -4),  # relative, 32 bits
        Relocation(12, 4, local, 0),  # a call
        Relocation(16, 24, outside, 1),  # relative, 64 bits
    )
    moved = Image(bytes(24), 0, relocations).at(0x1000, {"outside": 0x5000}.__getitem__)
    assert int.from_bytes(moved[0:8], "little") == 0x1000 + 16 + 4
    assert int.from_bytes(moved[8:12], "little") == 16 - 4 - 8
    assert int.from_bytes(moved[12:16], "little") == 16 - 12
    assert int.from_bytes(moved[16:24], "little") == 0x5000 + 1 - 0x1010


def test_a_target_too_far_for_its_word_is_refused() -> None:
    image = Image(bytes(8), 0, (Relocation(0, 2, Symbol(None, "far"), 0),))
    with pytest.raises(UnknownObjectError, match="far is too far"):
        image.at(0x1000, lambda name: 1 << 40)


def test_calls_reach_the_c_library() -> None:
    address = library_address("abs")
    assert ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int)(address)(-5) == 5
    with pytest.raises(OSError, match="no_such_function"):
        library_address("no_such_function")


def test_memory_of_code_cannot_be_written_any_more() -> None:
    address = place(1, lambda address: b"\xc3")  # ret
    with open("/proc/self/maps") as lines:
        spans = [line.split()[:2] for line in lines]
    rights = [
        rights
        for span, rights in spans
        if int(span.split("-")[0], 16) <= address < int(span.split("-")[1], 16)
    ]
    assert rights == ["r-xp"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda data: b"", "broken"),
        (lambda data: b"MZ" + data[2:], "no relocatable ELF"),
        (lambda data: data[:18] + b"\xb7\0" + data[20:], "no relocatable ELF"),  # for AArch64
        (lambda data: data[: len(data) // 2], "broken"),
    ],
)
def test_what_is_no_such_file_is_refused(change: Any, message: str, gate: bytes) -> None:
    with pytest.raises(UnknownObjectError, match=message):
        read_image(change(gate), ENTRY)


def test_an_entry_that_is_missing_is_refused(gate: bytes) -> None:
    with pytest.raises(UnknownObjectError, match="0 symbols other"):
        read_image(gate, "other")


def test_damaged_files_are_refused_or_stay_in_bounds(gate: bytes) -> None:
    chance = random.Random(1)
    for _ in range(2000):
        data = bytearray(gate)
        for _ in range(chance.choice((1, 2, 8))):
            data[chance.randrange(len(data))] = chance.randrange(256)
        try:
            image = read_image(bytes(data), ENTRY)
            assert len(image.at(0x10000, lambda name: 0)) <= 2 * len(data) + 3 * 4096
        except UnknownObjectError:
            pass


def test_what_is_not_understood_is_left_to_llvm(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(data: bytes, entry: str) -> Image:
        raise UnknownObjectError("new")

    monkeypatch.setattr(loader, "read_image", refuse)
    monkeypatch.setattr(loader, "load_by_llvm", lambda data: 5)
    assert load_object(b"") == 5
