"""The results file: runs one after the other, each written as it grows."""

from __future__ import annotations

import contextlib
import json
import os
import platform
from collections.abc import Iterator, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from edgerun.kernels.isa import selected_isa
from edgerun.machine.profile import processor_name

Run = dict[str, Any]


class Results:
    """Runs in a JSON file; None keeps them in memory alone."""

    def __init__(self, path: Path | None) -> None:
        """Reads what the file holds already."""
        self._path = path
        self.runs: list[Run] = []
        if path is not None and path.exists():
            self.runs = json.loads(path.read_text())["runs"]

    def add(self, run: Run) -> None:
        """Appends a run; ``save`` keeps it."""
        self.runs.append(run)
        self.save()

    def save(self) -> None:
        """Writes all runs; the file changes at once or not at all."""
        if self._path is None:
            return
        self._path.parent.mkdir(parents=True, exist_ok=True)
        temporary = self._path.with_suffix(".partial")
        temporary.write_text(json.dumps({"runs": self.runs}, indent=1))
        os.replace(temporary, self._path)

    def measured(self, kind: str, preset: str, threads: int) -> set[str]:
        """Peers that complete runs of a kind hold already."""
        return {
            name
            for run in self.runs
            if (run["kind"], run["preset"], run["threads"]) == (kind, preset, threads)
            if run["complete"]
            for name, peer in run["peers"].items()
            if "error" not in peer
        }


def new_run(kind: str, preset: str, threads: int, **more: Any) -> Run:
    """A run that has measured nothing yet."""
    with contextlib.suppress(OSError):
        more["load"] = round(os.getloadavg()[0], 2)
    return {
        "kind": kind,
        "preset": preset,
        "threads": threads,
        "date": datetime.now(timezone.utc).strftime("%Y-%m-%d"),
        "machine": platform.machine(),
        "processor": processor_name(),
        "isa": selected_isa().name,
        "complete": False,
        "bandwidth": [],
        "peers": {},
        **more,
    }


def runs_of(runs: Sequence[Run], kind: str, preset: str) -> Iterator[Run]:
    """Runs of one kind at one shape, in order."""
    return (run for run in runs if (run["kind"], run["preset"]) == (kind, preset))
