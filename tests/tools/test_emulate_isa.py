"""Kernels in an emulator: the memory that they are given, and a few of them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tools.emulate_isa.x86 import calls, image, machine
from tools.emulate_isa.x86.build import PAGE
from tools.emulate_isa.x86.processors import PROCESSORS

ROOT = Path(__file__).resolve().parents[2]
MISSING = machine.Bochs().missing(PROCESSORS["icelake-client"])


def test_arrays_end_at_the_end_of_a_page_between_unmapped_ones() -> None:
    memory, few, many = image.Memory(), np.zeros(5, np.int64), np.zeros(3000, np.int64)
    regions = memory.add([few, many])
    assert all(region.guest_end % PAGE == 0 for region in regions)
    first, second = sorted(regions, key=lambda region: region.guest)
    assert first.first_page >= image.DATA + PAGE
    assert second.first_page - first.guest_end == PAGE
    assert memory.end - second.guest_end == PAGE


def test_views_of_one_array_stay_together() -> None:
    base = np.arange(10, dtype=np.int64)
    (region,) = image.Memory().add([base[:6], base[4:]])
    assert region.end - region.start == base.nbytes


def test_addresses_are_translated_and_numbers_kept() -> None:
    base = np.arange(10, dtype=np.int64)
    regions = image.Memory().add([base])
    words = np.array([base.ctypes.data + 16, 5, 0, -1], np.int64)
    assert image.translate(words, regions).tolist() == [regions[0].guest + 16, 5, 0, -1]


def test_changed_pages_reach_their_array_and_damage_before_it_shows() -> None:
    memory, array = image.Memory(), np.zeros(600, np.int64)
    (region,) = memory.add([array])
    before = region.guest - region.first_page
    fresh = bytes([image.FILLER]) * before + b"\1" * (PAGE - before)
    assert memory.accept({region.first_page: fresh}) == []
    filled = (PAGE - before) // 8
    assert (array[:filled] == 0x0101010101010101).all() and not array[filled:].any()
    assert memory.accept({region.first_page: b"\0" + fresh[1:]}) == [region]


def test_a_report_without_an_end_is_an_error() -> None:
    with pytest.raises(ValueError, match="reported nothing"):
        machine._read(b"Bochs", 1)
    with pytest.raises(ValueError, match="not loaded"):
        machine._read(machine.DAMAGED, 1)


def test_only_a_known_defect_of_the_emulator_excuses_a_failure() -> None:
    assert "vcvtps2ph" in calls.excuse("cache_write-avx2-fp16-(40,1)")
    assert not calls.excuse("cache_write-avx2-fp32-(40,1)")


@pytest.mark.skipif(bool(MISSING), reason=MISSING or "nothing is missing")
def test_avx512_kernels_run_in_the_emulator() -> None:
    cases = ["--only", "linear_row-('avx512vnni',64,('int8',32))", "--only", "add-avx512vnni"]
    command = [sys.executable, "-m", "tools.emulate_isa", "x86", *cases]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    passed, *others = done.stdout.split()[-3:]
    assert int(passed) >= 6 and others == ["0", "0"]
