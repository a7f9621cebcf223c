"""How much memory is left, on machines described as folders of files."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest

from edgerun.kernels.host import memory as memory_module
from edgerun.kernels.host.memory import available_memory
from tests.kernels.test_cores import machine

GIB = 1 << 30
MEMINFO = {"proc/meminfo": f"MemTotal: {9 << 20} kB\nMemAvailable:    {4 << 20} kB\n"}
V2 = {"proc/self/cgroup": "0::/a/b\n"}
V1 = {"proc/self/cgroup": "3:memory:/docker/x\n2:cpu,cpuacct:/docker/x\n"}


def test_this_machine_has_what_the_system_says() -> None:
    assert 0 < available_memory() <= psutil.virtual_memory().total


def test_without_groups_it_is_what_the_system_has_left(tmp_path: Path) -> None:
    assert available_memory(machine(tmp_path, MEMINFO)) == 4 * GIB


def test_a_system_without_proc_is_asked_in_its_own_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory_module, "_other_system", lambda: 5)
    assert available_memory(tmp_path) == 5
    monkeypatch.undo()
    assert 0 < available_memory(tmp_path) <= psutil.virtual_memory().total


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"a/b/memory.max": "max", "a/b/memory.current": "7"}, 4 * GIB),
        ({"a/b/memory.max": str(2 * GIB), "a/b/memory.current": str(GIB)}, GIB),
        ({"a/memory.max": str(2 * GIB), "a/memory.current": str(GIB)}, GIB),
        ({"a/b/memory.max": str(GIB), "a/b/memory.current": str(2 * GIB)}, 0),
        (
            {
                "a/b/memory.max": str(2 * GIB),
                "a/b/memory.current": str(2 * GIB),
                "a/b/memory.stat": f"anon 5\ninactive_file {GIB}\n",
            },
            GIB,
        ),
    ],
)
def test_groups_of_version_2_limit_it(tmp_path: Path, files: dict[str, str], expected: int) -> None:
    groups = {f"sys/fs/cgroup/{name}": f"{text}\n" for name, text in files.items()}
    assert available_memory(machine(tmp_path, {**MEMINFO, **V2, **groups})) == expected


def test_groups_of_version_1_limit_it(tmp_path: Path) -> None:
    folder = "sys/fs/cgroup/memory/docker/x/"
    groups = {
        f"{folder}memory.limit_in_bytes": f"{3 * GIB}\n",
        f"{folder}memory.usage_in_bytes": f"{2 * GIB}\n",
        f"{folder}memory.stat": f"total_inactive_file {GIB}\n",
    }
    assert available_memory(machine(tmp_path, {**MEMINFO, **V1, **groups})) == 2 * GIB
