"""Processor time and memory of this process, from /proc."""

from __future__ import annotations

import os
import time
from pathlib import Path

PROC = Path("/proc")
FIELDS = {
    "VmHWM": "peak_bytes",
    "VmRSS": "rss_bytes",
    "RssAnon": "anon_bytes",
    "RssFile": "file_bytes",
}
IDLE_COLUMNS = (3, 4)  # idle, iowait
COUNTED_COLUMNS = 8  # user to steal; guest time is part of user time


class CpuUsage:
    """Cores kept busy since it was made, by this process and by everything else."""

    def __init__(self) -> None:
        self._wall, self._own, self._all = time.perf_counter(), _own_seconds(), _busy_seconds()

    def since(self) -> dict[str, float]:
        """Returns ``own_cores`` and ``other_cores``, stolen time counting as others'."""
        wall = time.perf_counter() - self._wall
        own = _own_seconds() - self._own
        others = max(0.0, _busy_seconds() - self._all - own)
        return {"own_cores": round(own / wall, 3), "other_cores": round(others / wall, 3)}


def memory() -> dict[str, int]:
    """Resident bytes: the most so far, all, anonymous, and pages of files."""
    return parse_status((PROC / "self" / "status").read_text())


def parse_status(text: str) -> dict[str, int]:
    """Reads the resident sizes from the text of /proc/PID/status."""
    rows = (line.split(":", 1) for line in text.splitlines() if ":" in line)
    return {FIELDS[name]: int(value.split()[0]) * 1024 for name, value in rows if name in FIELDS}


def _own_seconds() -> float:
    return time.process_time()


def _busy_seconds() -> float:
    columns = [int(text) for text in (PROC / "stat").read_text().split("\n", 1)[0].split()[1:]]
    busy = sum(columns[:COUNTED_COLUMNS]) - sum(columns[column] for column in IDLE_COLUMNS)
    return busy / os.sysconf("SC_CLK_TCK")
