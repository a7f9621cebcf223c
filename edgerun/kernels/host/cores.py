"""How many cores this process should use, read from the system.

A worker thread pays on a physical core of the fast kind: siblings of a core (SMT) share its
arithmetic units, slow cores of a hybrid processor hold the others up. What the process may use
is limited by its CPU affinity (Linux cpusets show in it) and by the CPU time that control groups
allow. Everything is read below one root folder, so that tests can describe any machine.

Sources: Linux ``Documentation/ABI/stable/sysfs-devices-system-cpu`` (topology),
``admin-guide/cputopology.rst``, ``arch/arm64/cpu-capacity`` and ``admin-guide/cgroup-v1/v2``;
``/sys/devices/cpu_core`` is the perf unit of the fast cores of Intel's hybrid processors.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Set
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from edgerun.env import settings
from edgerun.errors import InputError
from edgerun.kernels.host.cgroups import group_folders, read_text

CPUS = "sys/devices/system/cpu"
HYBRID_FAST = "sys/devices/cpu_core/cpus"
SPEED_FILES = ("cpu_capacity", "cpufreq/cpuinfo_max_freq")
# Fast cores of one processor differ by less than a tenth (favoured cores), slow ones by 0.3 and
# more: Cortex-A55 beside A76 0.5, Zen 5c beside Zen 5 0.65.
FAST_SHARE = 0.7
SIBLING_FILES = ("topology/core_cpus_list", "topology/thread_siblings_list")


@dataclass(frozen=True, slots=True)
class Cores:
    """What this process may run on.

    Attributes:
        logical: CPUs of the system's count that its affinity allows.
        physical: cores among them; SMT siblings count once.
        performance: cores among those that are as fast as the fastest; all of them where all
            are alike.
        quota: CPUs' worth of time that control groups allow, or None for any.
    """

    logical: int
    physical: int
    performance: int
    quota: float | None

    @property
    def usable(self) -> int:
        """Worker threads that make sense: fast cores, within the time allowed; at least 1."""
        allowed = self.performance if self.quota is None else math.ceil(self.quota)
        return max(1, min(self.performance, allowed))


@cache
def cores() -> Cores:
    """The cores of this process, read once."""
    return read_cores(Path("/"), allowed_cpus())


def worker_threads(asked: int | None) -> int:
    """Worker threads to use: ``asked``, else ``EDGERUN_THREADS``, else one per usable core.

    More threads than the process may have logical cores would wait for one another.

    Raises:
        InputError: there are fewer logical cores than threads.
    """
    threads = asked or settings().threads
    if threads is None:
        return cores().usable
    logical = cores().logical
    if threads > logical:
        name = "threads" if asked else "EDGERUN_THREADS"
        may_use = f"{logical} logical core{'s' if logical > 1 else ''}"
        raise InputError(
            f"{name} is {threads}, but this process may use only {may_use}: "
            f"expected 1 to {logical}, or leave it out for the best number here, {cores().usable}"
        )
    return threads


def read_cores(root: Path, allowed: Set[int]) -> Cores:
    """Reads the system's description of its cores.

    Args:
        root: folder that holds ``sys`` and ``proc``; what is missing there counts as unknown.
        allowed: numbers of the CPUs that the process may run on, at least one.
    """
    physical = _one_per_core(root, allowed)
    return Cores(
        logical=len(allowed),
        physical=len(physical),
        performance=len(_fast(root, physical)),
        quota=read_quota(root),
    )


def allowed_cpus() -> set[int]:
    """Numbers of the CPUs that this process may run on; all, where the system does not say."""
    if hasattr(os, "sched_getaffinity"):
        return set(os.sched_getaffinity(0))
    return set(range(os.cpu_count() or 1))


def parse_cpu_list(text: str) -> set[int]:
    """Numbers in the kernel's list format: ``0-3,8``; what is no such list is empty.

    >>> sorted(parse_cpu_list("0-2,5"))
    [0, 1, 2, 5]
    """
    numbers: set[int] = set()
    try:
        for part in filter(None, text.strip().split(",")):
            first, _, last = part.partition("-")
            numbers.update(range(int(first), int(last or first) + 1))
    except ValueError:
        return set()
    return numbers


def read_quota(root: Path) -> float | None:
    """CPUs' worth of time that the control groups of this process allow; the least of them."""
    quotas = [quota for folder in group_folders(root, "cpu") for quota in _quotas(folder)]
    return min(quotas, default=None)


def _one_per_core(root: Path, allowed: Set[int]) -> set[int]:
    """The first allowed CPU of every core."""
    chosen: set[int] = set()
    covered: set[int] = set()
    for cpu in sorted(allowed):
        if cpu not in covered:
            chosen.add(cpu)
            covered |= _siblings(root / CPUS / f"cpu{cpu}")
    return chosen


def _siblings(folder: Path) -> set[int]:
    for name in SIBLING_FILES:
        cpus = parse_cpu_list(read_text(folder / name))
        if cpus:
            return cpus
    return set()


def _fast(root: Path, cpus: Set[int]) -> Set[int]:
    """Those of the CPUs that are about as fast as the fastest of them."""
    named = parse_cpu_list(read_text(root / HYBRID_FAST)) & cpus
    if named:
        return named
    for name in SPEED_FILES:
        speeds = {cpu: _number(root / CPUS / f"cpu{cpu}" / name) for cpu in cpus}
        readable = [speed for speed in speeds.values() if speed is not None]
        if readable and len(readable) == len(speeds):
            least = FAST_SHARE * max(readable)
            return {cpu for cpu, speed in speeds.items() if speed is not None and speed >= least}
    return cpus


def _quotas(folder: Path) -> Iterator[float]:
    """What one group allows: version 2's ``cpu.max``, version 1's two files."""
    allowed, _, period = read_text(folder / "cpu.max").strip().partition(" ")
    texts = [
        (allowed, period),
        (read_text(folder / "cpu.cfs_quota_us"), read_text(folder / "cpu.cfs_period_us")),
    ]
    for quota, every in texts:
        if _whole(quota) and _whole(every):  # "max" and -1 mean no limit
            yield int(quota) / int(every)


def _whole(text: str) -> bool:
    text = text.strip()
    return text.isascii() and text.isdigit() and int(text) > 0


def _number(path: Path) -> int | None:
    text = read_text(path)
    return int(text) if _whole(text) else None
