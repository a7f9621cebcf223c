"""What identifies the processor."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from llvmlite import ir

from edgerun.kernels import isa as isa_module
from edgerun.kernels.attention import units
from edgerun.kernels.host import caches, processor
from edgerun.kernels.host.arm import arm_features, linux_machine
from edgerun.kernels.host.processor import INTEL, identity, vendor
from edgerun.kernels.isa import host_features
from edgerun.kernels.jit.target import host
from edgerun.kernels.lang.dot import X86
from edgerun.kernels.lang.ir import prefetch_line
from edgerun.kernels.linear import tiles
from edgerun.kernels.linear.tiles import PACKED, TRITS, UNPACKED

LINUX_X86 = X86 and sys.platform.startswith("linux")


@pytest.mark.skipif(not LINUX_X86, reason="asked with cpuid, on Linux")
def test_identity_is_the_same_on_every_core() -> None:
    code = "from edgerun.kernels.host.processor import identity; print(identity().hex())"
    identities = set()
    for core in sorted(os.sched_getaffinity(0))[:4]:
        pinned = f"import os; os.sched_setaffinity(0, [{core}]); {code}"
        done = subprocess.run(
            [sys.executable, "-c", pinned], capture_output=True, text=True, check=True
        )
        identities.add(done.stdout.strip())
    here = identity()
    assert here is not None
    assert identities == {here.hex()}


@pytest.mark.skipif(not LINUX_X86, reason="asked with cpuid, on Linux")
def test_x86_processors_say_who_made_them() -> None:
    with open("/proc/cpuinfo") as lines:
        told = next(line for line in lines if line.startswith("vendor_id"))
    assert vendor() == told.split(":")[1].strip()


def test_others_say_nothing_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processor, "linux_machine", lambda: "aarch64")
    assert vendor() == ""


@pytest.mark.parametrize(
    ("maker", "rows", "form", "asks"),
    [
        ("AuthenticAMD", 1, PACKED, False),
        ("AuthenticAMD", 2, PACKED, True),
        (INTEL, 1, PACKED, True),
        (INTEL, 1, TRITS, True),
        (INTEL, 4, UNPACKED, False),
    ],
)
def test_one_row_asks_for_codes_where_a_core_waits_for_them(
    maker: str, rows: int, form: str, asks: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tiles, "vendor", lambda: maker)
    tile = object.__new__(tiles.Tile)
    tile.shape, tile.depth = tiles.TileShape(2, rows, 2, form, 64, "avx512vnni", 1), 0
    assert tile._asks == asks


def test_other_systems_are_left_to_llvm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "plan9")
    identity.cache_clear()
    try:
        assert identity() is None
    finally:
        identity.cache_clear()


@pytest.mark.parametrize(
    ("words", "features"),
    [
        ({16: 0b11, 26: 0}, {"neon"}),  # Cortex-A53
        ({16: 0x119FFB, 26: 0}, {"neon", "lse", "dotprod"}),  # Cortex-A76
        ({16: 0xECFFFFFB, 26: 0x7F877FFF}, {"neon", "lse", "dotprod", "i8mm"}),
        ({16: 0, 26: 0}, set()),
    ],
)
def test_arm_says_what_it_can_do_in_words_of_bits(
    words: dict[int, int], features: set[str]
) -> None:
    assert arm_features(words.__getitem__) == features


def test_arm_features_are_asked_for_on_linux_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    assert (arm_features() is None) == (linux_machine() != "aarch64")
    monkeypatch.setattr(sys, "platform", "darwin")
    assert linux_machine() == ""
    assert arm_features() is None


def test_arm_processors_are_told_apart_by_features_and_cores(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    words, identities = {16: 3, 26: 0}, set()
    monkeypatch.setattr(processor, "linux_machine", lambda: "aarch64")
    monkeypatch.setattr(processor, "auxiliary", lambda entry: words[entry])
    for part, speed, bits in (("0xd03", 1, 3), ("0xd0b", 1, 3), ("0xd0b", 2, 3), ("0xd0b", 1, 7)):
        text = f"processor : {speed}\nBogoMIPS : {speed}\nCPU part : {part}\n"
        (tmp_path / "cpuinfo").write_text(text)
        monkeypatch.setattr(processor, "CPUINFO", tmp_path / "cpuinfo")
        words[16] = bits
        identity.cache_clear()
        identities.add(identity())
    monkeypatch.undo()
    identity.cache_clear()
    assert len(identities) == 3 and None not in identities


def test_remembered_features_are_llvms(monkeypatch: pytest.MonkeyPatch) -> None:
    flags = host()[2].split(",")
    expected = {flag[1:] for flag in flags if flag.startswith("+")}
    assert host_features() == expected
    monkeypatch.setattr(isa_module, "identity", lambda: None)
    host_features.cache_clear()
    try:
        assert host_features() == expected
    finally:
        host_features.cache_clear()


@pytest.mark.parametrize(
    ("said", "text", "nbytes"),
    [(4096, "8K", 4096), (0, "32768K\n", 32 << 20), (0, "", 0), (-1, None, 0), (0, "much", 0)],
)
def test_sizes_of_caches_are_what_the_system_says(
    said: int, text: str | None, nbytes: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("index0", "index3"):
        if text is not None:
            (tmp_path / name).mkdir()
            (tmp_path / name / "size").write_text(text)
    monkeypatch.setattr(caches, "FOLDER", tmp_path)
    monkeypatch.setattr(caches.os, "sysconf", lambda name: said, raising=False)
    assert caches.first_cache_bytes() == caches.last_cache_bytes() == nbytes


@pytest.mark.parametrize(("nbytes", "cache"), [(32 << 10, 2), (48 << 10, 1), (0, 1)])
def test_a_small_first_cache_is_left_to_what_is_read_now(
    nbytes: int, cache: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(units, "first_cache_bytes", lambda: nbytes)
    assert units.cache_of_pages() == cache


@pytest.mark.parametrize(("cache", "locality"), [(1, 3), (2, 2)])
def test_lines_are_asked_into_a_cache(cache: int, locality: int) -> None:
    module = ir.Module()
    function = ir.Function(module, ir.FunctionType(ir.VoidType(), [ir.IntType(64)]), "f")
    prefetch_line(ir.IRBuilder(function.append_basic_block()), function.args[0], cache)
    assert f"i32 0, i32 {locality}, i32 1)" in str(function)
