"""Control groups of this process: the folders in which Linux says what it may use.

Source: Linux ``admin-guide/cgroup-v1`` and ``cgroup-v2``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path, PurePosixPath

CGROUPS = "proc/self/cgroup"
CGROUP_MOUNT = "sys/fs/cgroup"


def group_folders(root: Path, controller: str) -> Iterator[Path]:
    """Folders of the groups in which a controller may limit this process, its own first.

    They go up to the mount's root.
    Inside a container the path that the system reports may not exist below the mount, which then
    is the container's own group: the root is looked at in any case.
    """
    for line in read_text(root / CGROUPS).splitlines():
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        names = controllers.split(",")
        if controllers and controller not in names:
            continue
        for mount in _mounts(controllers, controller):
            yield from _upwards(root / CGROUP_MOUNT / mount, path)


def _mounts(controllers: str, controller: str) -> Iterable[str]:
    """Version 1 has a mount for each set of controllers, version 2 one for all."""
    if not controllers:
        return ("", "unified")
    usual = (controllers, controller, "cpu,cpuacct")
    return dict.fromkeys(name for name in usual if controller in name.split(","))


def _upwards(mount: Path, path: str) -> Iterator[Path]:
    parts = [part for part in PurePosixPath(path).parts if part != "/"]
    if ".." in parts:  # outside of what this namespace shows
        parts = []
    for length in range(len(parts), -1, -1):
        yield mount.joinpath(*parts[:length])


def read_text(path: Path) -> str:
    """Text of a file of the system; empty where there is none."""
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""
