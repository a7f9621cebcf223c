"""What is known of a disk, and what follows for reading from it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from edgerun.env import read_settings
from edgerun.machine import profile
from edgerun.machine.disk import NOMINAL_DISK, DiskProfile, disk_key
from edgerun.machine.profile import MachineProfile, read_disk, read_disks, write_disk

MEASURED = DiskProfile(
    direct={1: 4e8, 2: 7e8, 4: 8e8, 8: 8.1e8}, buffered={1: 3e8, 2: 6e8, 4: 7e8, 8: 7e8}
)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    chosen = read_settings({"EDGERUN_CACHE": str(tmp_path / "cache")})
    monkeypatch.setattr(profile, "settings", lambda: chosen)
    profile.machine_profile.cache_clear()
    yield tmp_path
    profile.machine_profile.cache_clear()


def test_the_fewest_threads_that_are_fast_read() -> None:
    assert MEASURED.is_direct
    assert MEASURED.threads == 4
    assert MEASURED.bytes_s == 8e8


def test_threads_that_bring_little_more_make_each_read_wait_longer() -> None:
    assert DiskProfile({1: 1.13e9, 2: 1.43e9, 4: 1.44e9, 8: 1.52e9}).threads == 2
    assert DiskProfile({1: 2.4e9, 2: 2.5e9, 4: 2.6e9, 8: 2.7e9}).threads == 1


@pytest.mark.parametrize(
    ("direct", "buffered", "is_direct"),
    [(1.0, 1.1, True), (1.0, 1.3, False), (2.0, 1.0, True), (None, 1.0, False), (1.0, None, True)],
)
def test_direct_reads_are_preferred_unless_others_are_clearly_faster(
    direct: float | None, buffered: float | None, is_direct: bool
) -> None:
    disk = DiskProfile({2: direct} if direct else {}, {3: buffered} if buffered else {})
    assert disk.is_direct == is_direct
    assert disk.threads == (2 if is_direct else 3)


def test_few_pieces_are_read_at_the_speed_of_few_threads() -> None:
    assert MEASURED.read_s(0, 1e6) == 0
    assert MEASURED.read_s(1, 4e8) == pytest.approx(1)
    assert MEASURED.read_s(2, 7e8) == pytest.approx(2)
    assert 3 * 1e8 / 8e8 < MEASURED.read_s(3, 1e8) < 3 * 1e8 / 7e8
    assert MEASURED.read_s(100, 8e6) == pytest.approx(1)  # no more threads than are worth it


def test_a_disk_is_known_by_its_file_system(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert disk_key(tmp_path) == disk_key(tmp_path / "not" / "there")
    mounts = [("/", "/dev/a", "ext4"), (str(tmp_path), "/dev/b", "xfs"), ("/x", "/dev/c", "ext4")]
    names = ("mountpoint", "device", "fstype")
    monkeypatch.setattr(
        psutil,
        "disk_partitions",
        lambda all: [SimpleNamespace(**dict(zip(names, each, strict=True))) for each in mounts],
    )
    monkeypatch.setattr(os.path, "ismount", lambda path: str(path) in ("/", str(tmp_path)))
    assert disk_key(tmp_path / "model") == f"xfs on /dev/b, at {tmp_path}"
    assert disk_key(tmp_path.parent) == "ext4 on /dev/a, at /"
    mounts.clear()
    assert disk_key(tmp_path) == f"unknown, at {tmp_path}"


def test_what_is_known_of_disks_and_machines_lies_side_by_side(folder: Path) -> None:
    assert read_disk(folder) is None
    profile.write_profile(MachineProfile(bandwidth={1: 7.0}))
    written = write_disk(folder, MEASURED)
    assert written.measured
    assert read_disk(folder / "deeper") == written
    profile.write_profile(MachineProfile(bandwidth={1: 8.0}))
    assert read_disk(folder) == written
    assert profile.read_profile().bandwidth == {1: 8.0}


def test_a_file_from_before_disks_were_measured_is_still_read(folder: Path) -> None:
    profile.write_profile(MachineProfile(bandwidth={1: 7.0}))
    path = profile.path()
    path.write_text(path.read_text().replace('"disks": {}', '"unknown": 1'))
    assert "disks" not in path.read_text()
    assert profile.read_profile().bandwidth == {1: 7.0}
    assert read_disks() == {}


@pytest.mark.parametrize("speeds", [{}, {0: 1.0}, {1: 0.0}, {1: -1.0}])
def test_figures_that_cannot_be_are_not_believed(folder: Path, speeds: dict[Any, Any]) -> None:
    write_disk(folder, DiskProfile(direct=speeds))
    assert read_disk(folder) is None


def test_what_is_assumed_can_be_read_with() -> None:
    assert NOMINAL_DISK.is_direct
    assert NOMINAL_DISK.read_s(4, 1e6) > 0
