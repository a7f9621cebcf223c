"""The speed of memory, and the size of the cache."""

from __future__ import annotations

from pathlib import Path

import pytest

from edgerun.machine import bandwidth


def test_memory_reads_at_a_believable_speed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bandwidth, "BUFFER_BYTES", 32 << 20)
    monkeypatch.setattr(bandwidth, "SECONDS", 0.0)
    monkeypatch.setattr(bandwidth, "last_cache_bytes", lambda: 0)
    assert 1e8 < bandwidth.measure_bandwidth(1) < 1e13


@pytest.mark.parametrize(
    ("said", "text", "nbytes"),
    [(4096, "8K", 4096), (0, "32768K\n", 32 << 20), (0, "", 0), (-1, None, 0), (0, "much", 0)],
)
def test_the_size_of_the_last_cache_is_what_the_system_says(
    said: int, text: str | None, nbytes: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "size"
    if text is not None:
        file.write_text(text)
    monkeypatch.setattr(bandwidth, "CACHE_SIZE", file)
    monkeypatch.setattr(bandwidth.os, "sysconf", lambda name: said, raising=False)
    assert bandwidth.last_cache_bytes() == nbytes
