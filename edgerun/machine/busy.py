"""Whether other programs use the processors while something is measured.

What is measured beside them is too slow by an unknown factor: a wait of all threads for one
another takes as long as the system's time slices, a thousand times its cost on a quiet machine.
"""

from __future__ import annotations

import os
import time
from typing import NamedTuple

from edgerun.kernels.host.cores import allowed_cpus

BUSY_SHARE = 0.1  # of the CPUs of this process: what others may take without harm
IDLE_FIELDS = frozenset(("idle", "iowait", "guest", "guest_nice"))  # guests are in user and nice


class _Times(NamedTuple):
    """Seconds: of the clock, of all programs on the CPUs of this process, and of its own."""

    clock: float
    everyone: float
    own: float


class BusyMeter:
    """Measures how many CPUs others take while it is entered.

    Counted are the CPUs that this process may run on, and as others' what a hypervisor steals
    too. Where the system counts no times of its CPUs, others count as idle.

    Attributes:
        cpus: that this process may run on.
        other_cpus: average number of them that others used.
    """

    def __init__(self) -> None:
        self.cpus = len(allowed_cpus())
        self.other_cpus = 0.0
        self._start: _Times | None = None

    def __enter__(self) -> BusyMeter:
        self._start = _read_times()
        return self

    def __exit__(self, *_: object) -> None:
        if self._start is None:
            return
        end = _read_times()
        others = (end.everyone - self._start.everyone) - (end.own - self._start.own)
        self.other_cpus = max(0.0, others / max(end.clock - self._start.clock, 1e-3))

    @property
    def busy(self) -> bool:
        """Whether others took so much that figures measured meanwhile are no use."""
        return self.other_cpus > BUSY_SHARE * self.cpus

    def describe(self) -> str:
        """What others did, as part of a sentence."""
        return f"other programs used {self.other_cpus:.1f} of {self.cpus} CPUs meanwhile"


def _read_times() -> _Times:
    import psutil

    process = psutil.Process()
    times = os.times()
    own = times.user + times.system + times.children_user + times.children_system
    for child in process.children(recursive=True):
        try:
            used = child.cpu_times()
        except psutil.Error:  # it has just ended
            continue
        own += used.user + used.system
    by_cpu = psutil.cpu_times(percpu=True)
    allowed = [cpu for cpu in sorted(allowed_cpus()) if cpu < len(by_cpu)] or range(len(by_cpu))
    everyone = sum(
        seconds
        for cpu in allowed
        for name, seconds in by_cpu[cpu]._asdict().items()
        if name not in IDLE_FIELDS
    )
    return _Times(time.perf_counter(), everyone, own)
