"""What a disk can do: how fast experts are read from it, in random order."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import TypeAlias

from edgerun.machine.devices import Count, Speed, interpolated

WORTH = 1.1  # times the speed, for more threads: each read then waits for those before it
WORTH_COPYING = 1.15  # times the speed, for the processor time that the system's cache takes

Speeds: TypeAlias = Mapping[Count, Speed]


@dataclass(frozen=True, slots=True)
class DiskProfile:
    """Bytes a second that threads read together, each a piece of some megabytes at a time.

    Attributes:
        direct: by threads, past the system's cache; empty where the file system refuses that.
        buffered: by threads, through the system's cache, with nothing in it.
        measured: when, as a date, ``YYYY-MM-DD``, or in words where that is not stored.
    """

    direct: Speeds = field(default_factory=dict)
    buffered: Speeds = field(default_factory=dict)
    measured: str = ""

    @property
    def is_direct(self) -> bool:
        """Whether it is best read past the system's cache."""
        fastest = [max(speeds.values(), default=0.0) for speeds in (self.direct, self.buffered)]
        return bool(self.direct) and fastest[1] < fastest[0] * WORTH_COPYING

    @property
    def speeds(self) -> Speeds:
        """Of the better way of reading, by threads."""
        return self.direct if self.is_direct else self.buffered

    @property
    def threads(self) -> int:
        """The fewest that the next larger number does not clearly bring more than."""
        counts = sorted(self.speeds)
        for count, more in pairwise(counts):
            if self.speeds[more] < WORTH * self.speeds[count]:
                return count
        return counts[-1]

    @property
    def bytes_s(self) -> float:
        """Bytes a second that these threads read."""
        return self.speeds[self.threads]

    def scaled(self, factor: float) -> DiskProfile:
        """The same disk when it is so many times as fast."""
        ways = [
            {count: speed * factor for count, speed in speeds.items()}
            for speeds in (self.direct, self.buffered)
        ]
        return replace(self, direct=ways[0], buffered=ways[1])

    def read_s(self, count: float, nbytes: float) -> float:
        """Seconds to read so many pieces of so many bytes, as many at a time as it has threads."""
        if count <= 0:
            return 0.0
        at_once = max(1, min(round(count), self.threads))
        return count * nbytes / interpolated(self.speeds, at_once)


# What is assumed of a disk that nothing was measured of: a slow solid-state disk.
NOMINAL_DISK = DiskProfile(direct={1: 0.3e9, 4: 0.5e9}, buffered={1: 0.25e9, 4: 0.4e9})


def disk_key(folder: Path) -> str:
    """Names the file system that a folder lies in, as ``ext4 on /dev/sda1, at /home``."""
    import psutil

    place = Path(os.path.realpath(folder))
    while not os.path.ismount(place):
        place = place.parent
    mounted = [each for each in psutil.disk_partitions(all=True) if each.mountpoint == str(place)]
    if not mounted:
        return f"unknown, at {place}"
    return f"{mounted[-1].fstype} on {mounted[-1].device}, at {place}"
