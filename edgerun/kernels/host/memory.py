"""How much memory this process may still take: what the system has left, and what groups allow.

Sources: Linux ``filesystems/proc.rst`` (``MemAvailable``), ``admin-guide/cgroup-v2.rst``
(``memory.max``, ``memory.current``, ``inactive_file``), ``admin-guide/cgroup-v1/memory.rst``.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from edgerun.kernels.host.cgroups import group_folders, read_text

MEMINFO = "proc/meminfo"
# Limit, use and statistics of a group, by the version of control groups.
FILES = (
    ("memory.max", "memory.current"),
    ("memory.limit_in_bytes", "memory.usage_in_bytes"),
)
RECLAIMED = ("inactive_file", "total_inactive_file")  # files in memory that nobody needs there
KIB = 1024


def available_memory(root: Path = Path("/")) -> int:
    """Bytes that can be taken without swapping and within the limits of control groups.

    Args:
        root: where the system's files are, so that tests can describe any machine.
    """
    free = _fields(read_text(root / MEMINFO)).get("MemAvailable:")
    system = _other_system() if free is None else free * KIB
    return max(0, min([system, *_allowed(root, system)]))


def _other_system() -> int:
    """The same on systems without ``/proc``."""
    import psutil  # 10 ms

    return int(psutil.virtual_memory().available)


def _allowed(root: Path, system: int) -> Iterator[int]:
    """What each control group still allows, of those that allow less than the system has left."""
    for folder in group_folders(root, "memory"):
        for limit, use in FILES:
            most = read_text(folder / limit).strip()
            if not most.isdecimal():  # "max", or there is no such file
                continue
            used = read_text(folder / use).strip()
            if used.isdecimal() and int(most) - int(used) < system:
                statistics = _fields(read_text(folder / "memory.stat"))
                reclaimed = max((statistics.get(name, 0) for name in RECLAIMED), default=0)
                yield int(most) - int(used) + reclaimed


def _fields(text: str) -> dict[str, int]:
    """Numbers of lines such as ``MemAvailable:  1234 kB``, by their first word."""
    words = (line.split() for line in text.splitlines())
    return {each[0]: int(each[1]) for each in words if len(each) > 1 and each[1].isdecimal()}
