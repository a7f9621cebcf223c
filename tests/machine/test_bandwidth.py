"""The speed of memory."""

from __future__ import annotations

import pytest

from edgerun.machine import bandwidth


def test_memory_reads_at_a_believable_speed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bandwidth, "BUFFER_BYTES", 32 << 20)
    monkeypatch.setattr(bandwidth, "SECONDS", 0.0)
    monkeypatch.setattr(bandwidth, "last_cache_bytes", lambda: 0)
    assert 1e8 < bandwidth.measure_bandwidth(1) < 1e13
