"""Disks are measured with files of some kilobytes, and slow or full ones are pretended."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from edgerun.env import read_settings
from edgerun.errors import InputError, StorageError
from edgerun.files.direct import DirectFile
from edgerun.graph.mapped_file import MappedFile
from edgerun.machine import profile
from edgerun.machine.disk import NOMINAL_DISK, DiskProfile
from edgerun.machine.profile import read_disk, write_disk
from edgerun.plan.calibration import disk
from edgerun.plan.calibration import processor as calibration
from edgerun.plan.calibration.disk import disk_profile, measure_disk, measure_file
from edgerun.values import Notice
from tests.support.fakes import Meter

MEASURED = DiskProfile(direct={1: 2e8}, buffered={1: 1e8})


@pytest.fixture(autouse=True)
def quick(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> Iterator[None]:
    chosen = read_settings({"EDGERUN_CACHE": str(tmp_path_factory.mktemp("cache"))})
    monkeypatch.setattr(profile, "settings", lambda: chosen)
    monkeypatch.setattr(disk, "BusyMeter", Meter(busy=False))
    sizes = {"PIECE_BYTES": 8192, "FILE_BYTES": 1 << 16, "LEAST_FILE_BYTES": 1 << 14}
    for name, value in {**sizes, "WRITE_BYTES": 4096, "SECONDS": 0.0, "THREADS": (1, 3)}.items():
        monkeypatch.setattr(disk, name, value)
    profile.machine_profile.cache_clear()
    yield
    profile.machine_profile.cache_clear()


def mapped(path: Path) -> MappedFile:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        return MappedFile(descriptor)
    finally:
        os.close(descriptor)


def test_both_ways_of_reading_are_measured_and_nothing_stays(tmp_path: Path) -> None:
    said: list[str] = []
    measured = measure_disk(tmp_path, said.append)
    assert set(measured.buffered) == {1, 3}
    assert set(measured.direct) in ({1, 3}, set())  # some file systems have none
    assert all(
        speed > 0 for each in (measured.direct, measured.buffered) for speed in each.values()
    )
    assert not any(tmp_path.iterdir())
    assert f"the disk of {tmp_path}" in said[0]


def test_a_file_that_is_there_is_read_instead(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "weights").write_bytes(bytes(1 << 16))
    (tmp_path / "small").write_bytes(bytes(100))
    monkeypatch.setattr(disk, "_written", lambda folder: pytest.fail("it is written"))
    assert measure_disk(tmp_path).buffered


def test_direct_reads_that_are_refused_are_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def buffered(descriptor: int, check: Any, *, direct: bool) -> DirectFile:
        return DirectFile(descriptor, check, direct=False)

    monkeypatch.setattr(disk, "DirectFile", buffered)
    measured = measure_disk(tmp_path)
    assert not measured.direct
    assert set(measured.buffered) == {1, 3}
    assert not measured.is_direct


def test_a_slow_disk_takes_its_time_only_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every way of reading has a figure, however long it took."""
    monkeypatch.setattr(disk, "MOST_SECONDS", 0.0)
    measured = measure_disk(tmp_path)
    assert set(measured.buffered) == {1}


def test_speeds_are_those_of_the_reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader that takes 10 ms for a piece, however many read."""
    (tmp_path / "weights").write_bytes(bytes(1 << 16))

    class Slow:
        is_direct = False

        def __init__(self, *_: Any, direct: bool) -> None:
            pass

        def forget(self, offset: int, length: int) -> None:
            pass

        def read_into(self, offset: int, length: int, buffer: memoryview) -> memoryview:
            time.sleep(0.01)
            return buffer[:length]

    monkeypatch.setattr(disk, "DirectFile", Slow)
    measured = measure_file(mapped(tmp_path / "weights"))
    assert 0.2 * 8192 / 0.01 < measured.buffered[1] <= 8192 / 0.01
    assert measured.buffered[3] <= 3 * 8192 / 0.01


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="there is no folder"):
        measure_disk(tmp_path / "missing")


@pytest.mark.parametrize("number", [errno.EROFS, errno.EACCES])
def test_a_folder_that_may_not_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def refuse(**_: Any) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(disk.tempfile, "TemporaryFile", refuse)
    with pytest.raises(StorageError, match=rf"cannot be measured.*{os.strerror(number)}; name a"):
        measure_disk(tmp_path)


def test_a_full_disk_is_left_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = SimpleNamespace(free=1 << 15)
    monkeypatch.setattr(disk.shutil, "disk_usage", lambda folder: usage)
    with pytest.raises(StorageError, match="No space left on device; name a folder"):
        measure_disk(tmp_path)
    usage.free = 1 << 30

    def fail(descriptor: int, data: bytes) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(disk.os, "write", fail)
    with pytest.raises(StorageError, match="No space left on device"):
        measure_disk(tmp_path)
    assert not any(tmp_path.iterdir())


def test_ctrl_c_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: Any) -> float:
        raise KeyboardInterrupt

    monkeypatch.setattr(disk, "_read_pieces", interrupt)
    with pytest.raises(KeyboardInterrupt):
        measure_disk(tmp_path)
    assert not any(tmp_path.iterdir())


def test_a_disk_that_writes_slowly_gets_a_smaller_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(disk, "WRITE_SECONDS", 0.0)
    sizes = []
    monkeypatch.setattr(disk, "measure_file", lambda file, progress: sizes.append(len(file)))
    measure_disk(tmp_path)
    assert sizes == [disk.LEAST_FILE_BYTES]


def test_a_disk_is_measured_when_first_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "weights").write_bytes(bytes(1 << 14))
    file, said = mapped(tmp_path / "weights"), list[str]()
    monkeypatch.setattr(disk, "measure_file", lambda _, progress: progress("disk") or MEASURED)
    speeds = [disk_profile(tmp_path, file, said.append) for _ in range(2)]
    assert speeds[0] == read_disk(tmp_path)
    assert said == ["measuring the disk"]
    assert isinstance(said[0], Notice)
    assert speeds[1].direct.keys() == MEASURED.direct.keys()


def test_a_disk_that_is_known_is_taken_to_be_as_fast_as_it_is_now(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "weights").write_bytes(bytes(1 << 14))
    write_disk(tmp_path, DiskProfile(direct={1: 2e8, 3: 4e8}, buffered={1: 1e8}))
    asked: list[Any] = []
    speeds = iter([1e5, 2e8, 1e6, 1e8, 0.9e8, 3e8])  # the first, and one in a pause

    def read(_: Any, size: int, buffers: list[Any], seconds: float) -> float:
        asked.append((size, len(set(map(id, buffers))), seconds))
        return next(speeds)

    monkeypatch.setattr(disk, "_read_pieces", read)
    now = disk_profile(tmp_path, mapped(tmp_path / "weights"), pytest.fail)
    assert (now.direct, now.buffered) == ({1: 0.5e8, 3: 1e8}, {1: 0.25e8})
    assert now.measured == "now"
    assert asked == [(1 << 14, 3, disk.SAMPLE_SECONDS)] * (disk.SAMPLES + 1)
    assert disk_profile(tmp_path, None, pytest.fail).bytes_s == 4e8


def test_loading_does_not_wait_for_five_reads_of_a_slow_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "weights").write_bytes(bytes(1 << 14))
    write_disk(tmp_path, DiskProfile(direct={1: 2e8}, buffered={1: 1e8}))
    now, speeds = [0.0], iter([3e6, 2e6])
    monkeypatch.setattr(disk, "time", SimpleNamespace(perf_counter=lambda: now[0]))

    def read(*_: Any) -> float:
        now[0] += 0.7 * disk.SAMPLING_SECONDS  # for a single piece
        return next(speeds)

    monkeypatch.setattr(disk, "_read_pieces", read)
    speeds = disk_profile(tmp_path, mapped(tmp_path / "weights"), pytest.fail)
    assert speeds.bytes_s == pytest.approx(2e6)


def test_what_the_system_has_in_its_cache_is_read_from_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When it is measured and ever after, as of a model that was written a moment ago."""
    (tmp_path / "weights").write_bytes(bytes(1 << 14))
    forgotten: set[tuple[int, int]] = set()
    reads: list[bool] = []

    class Cached(DirectFile):
        def forget(self, offset: int, length: int) -> None:
            forgotten.add((offset, length))

        def read_into(self, offset: int, length: int, buffer: memoryview) -> memoryview:
            reads.append((offset, length) in forgotten)
            forgotten.discard((offset, length))
            return buffer[:length]

    monkeypatch.setattr(disk, "DirectFile", Cached)
    monkeypatch.setattr(disk, "THREADS", (1,))
    file = mapped(tmp_path / "weights")
    for _ in range(2):
        reads.clear()
        disk_profile(tmp_path, file, lambda text: None)
        assert reads and all(reads)


def test_on_a_busy_machine_it_is_measured_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "weights").write_bytes(bytes(1 << 14))
    monkeypatch.setattr(disk, "BusyMeter", Meter(busy=True))
    monkeypatch.setattr(disk, "measure_file", lambda *_: MEASURED)
    measured = disk_profile(tmp_path, mapped(tmp_path / "weights"), lambda text: None)
    assert measured.direct == MEASURED.direct
    assert measured.measured == "now, while other programs used 1.3 of 2 CPUs meanwhile"
    assert read_disk(tmp_path) is None


def test_a_small_file_says_nothing_of_a_disk(tmp_path: Path) -> None:
    (tmp_path / "weights").write_bytes(bytes((1 << 14) - 1))
    file = mapped(tmp_path / "weights")
    assert disk_profile(tmp_path, file, pytest.fail) is NOMINAL_DISK
    assert disk_profile(tmp_path, None, pytest.fail) is NOMINAL_DISK
    assert read_disk(tmp_path) is None


def test_calibrating_with_a_folder_begins_with_its_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So that a folder that cannot be used is said at once."""
    monkeypatch.setattr(calibration, "BusyMeter", Meter(busy=False))
    monkeypatch.setattr(calibration, "measure_disk", lambda folder, progress: MEASURED)
    monkeypatch.setattr(calibration, "measure_contended", lambda threads: 1.0)
    plain = profile.MachineProfile(bandwidth={1: 1e9})
    monkeypatch.setattr(calibration, "_measure_all", lambda threads, progress: plain)
    calibration.calibrate(1, folder=tmp_path)
    speeds = read_disk(tmp_path)
    assert speeds is not None
    assert speeds.direct == MEASURED.direct
    assert profile.read_profile().bandwidth == {1: 1e9}
    with pytest.raises(InputError, match="there is no folder"):
        monkeypatch.setattr(calibration, "measure_disk", measure_disk)
        monkeypatch.setattr(calibration, "_measure_all", lambda *_: pytest.fail("too late"))
        calibration.calibrate(1, folder=tmp_path / "missing")
