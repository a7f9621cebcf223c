"""The measured speed of memory."""

from __future__ import annotations

from pathlib import Path

import pytest

from edgerun import profile
from edgerun.env import read_settings


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    chosen = read_settings({"EDGERUN_CACHE": str(tmp_path / "cache")})
    monkeypatch.setattr(profile, "settings", lambda: chosen)
    return tmp_path / "cache"


def test_memory_reads_at_a_believable_speed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(profile, "BUFFER_BYTES", 32 << 20)
    monkeypatch.setattr(profile, "SECONDS", 0.0)
    assert 1e8 < profile.measure_bandwidth(1) < 1e13


def test_speed_is_measured_once_per_number_of_threads(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []

    def measure(threads: int) -> float:
        asked.append(threads)
        return 1e9 * threads

    monkeypatch.setattr(profile, "measure_bandwidth", measure)
    assert [profile.machine_bandwidth(threads) for threads in (1, 2, 1, 2)] == [1e9, 2e9, 1e9, 2e9]
    assert asked == [1, 2]
    assert [path.name for path in folder.iterdir()] == [profile.FILE]


@pytest.mark.parametrize("text", ["", "[]", '{"x": "fast"}', "null"])
def test_damaged_file_is_measured_again(
    folder: Path, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder.mkdir()
    (folder / profile.FILE).write_text(text)
    monkeypatch.setattr(profile, "measure_bandwidth", lambda threads: 5.0)
    assert profile.machine_bandwidth(1) == 5.0


def test_folder_that_cannot_be_written_is_no_error(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder.write_text("a file where the folder should be")
    monkeypatch.setattr(profile, "measure_bandwidth", lambda threads: 5.0)
    assert profile.machine_bandwidth(1) == 5.0
