"""Which cores a process should use, on machines described as folders of files."""

from __future__ import annotations

from pathlib import Path

import pytest

from edgerun.env import Settings, read_settings
from edgerun.errors import InputError
from edgerun.kernels.host import cores as cores_module
from edgerun.kernels.host.cores import Cores, parse_cpu_list, read_cores, read_quota, worker_threads

CPUS = "sys/devices/system/cpu/cpu{}/"
V2 = {"proc/self/cgroup": "0::/a/b\n"}
V1 = {"proc/self/cgroup": "3:memory:/docker/x\n2:cpu,cpuacct:/docker/x\n1:name=systemd:/x\n"}


def machine(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def siblings(groups: list[str], name: str = "core_cpus_list") -> dict[str, str]:
    """Topology files of every CPU in lists such as ``"0,4"``."""
    return {
        f"{CPUS.format(cpu)}topology/{name}": f"{group}\n"
        for group in groups
        for cpu in parse_cpu_list(group)
    }


def speeds(values: list[int], name: str) -> dict[str, str]:
    return {f"{CPUS.format(cpu)}{name}": f"{value}\n" for cpu, value in enumerate(values)}


def test_a_machine_that_tells_nothing_has_as_many_cores_as_cpus(tmp_path: Path) -> None:
    assert read_cores(tmp_path, {0, 1, 2}) == Cores(3, 3, 3, None)
    assert read_cores(tmp_path, {0, 1, 2}).usable == 3


@pytest.mark.parametrize("name", ["core_cpus_list", "thread_siblings_list"])
@pytest.mark.parametrize("groups", [["0,4", "1,5", "2,6", "3,7"], ["0-1", "2-3", "4-5", "6-7"]])
def test_siblings_of_a_core_count_once(tmp_path: Path, groups: list[str], name: str) -> None:
    cores = read_cores(machine(tmp_path, siblings(groups, name)), set(range(8)))
    assert (cores.logical, cores.physical, cores.usable) == (8, 4, 4)


@pytest.mark.parametrize(
    ("allowed", "physical"), [({0, 4}, 1), ({0, 1}, 2), ({4, 5, 6}, 3), ({7}, 1)]
)
def test_affinity_limits_cores(tmp_path: Path, allowed: set[int], physical: int) -> None:
    root = machine(tmp_path, siblings(["0,4", "1,5", "2,6", "3,7"]))
    assert read_cores(root, allowed).usable == physical


def test_fast_cores_of_an_intel_hybrid(tmp_path: Path) -> None:
    # Two fast cores with two threads each, four slow ones with one.
    files = siblings(["0-1", "2-3", "4", "5", "6", "7"])
    files["sys/devices/cpu_core/cpus"] = "0-3\n"
    files["sys/devices/cpu_atom/cpus"] = "4-7\n"
    files |= speeds([5_000_000] * 4 + [3_800_000] * 4, "cpufreq/cpuinfo_max_freq")
    root = machine(tmp_path, files)
    assert read_cores(root, set(range(8))) == Cores(8, 6, 2, None)
    # Pinned to slow cores, a process uses those.
    assert read_cores(root, {4, 5, 6}).usable == 3


@pytest.mark.parametrize(
    ("values", "name", "fast"),
    [
        ([530] * 4 + [1024] * 4, "cpu_capacity", 4),  # A55 beside A76
        ([250] * 4 + [870] * 3 + [1024], "cpu_capacity", 4),  # three kinds
        ([1024] * 4, "cpu_capacity", 4),
        ([5_100_000] * 4 + [3_300_000] * 8, "cpufreq/cpuinfo_max_freq", 4),  # Zen 5 and 5c
        ([5_400_000, 5_500_000, 5_700_000], "cpufreq/cpuinfo_max_freq", 3),  # favoured cores
    ],
)
def test_fast_cores_by_what_the_system_says_of_each(
    tmp_path: Path, values: list[int], name: str, fast: int
) -> None:
    cores = read_cores(machine(tmp_path, speeds(values, name)), set(range(len(values))))
    assert (cores.physical, cores.usable) == (len(values), fast)


def test_capacity_counts_before_frequency(tmp_path: Path) -> None:
    files = speeds([1024, 512], "cpu_capacity")
    files |= speeds([2_000_000, 2_000_000], "cpufreq/cpuinfo_max_freq")
    assert read_cores(machine(tmp_path, files), {0, 1}).performance == 1


def test_speeds_that_are_known_of_some_cores_only_are_ignored(tmp_path: Path) -> None:
    root = machine(tmp_path, speeds([1024, 512], "cpu_capacity"))
    assert read_cores(root, {0, 1, 2}).performance == 3


@pytest.mark.parametrize(
    ("files", "quota"),
    [
        ({}, None),
        ({"sys/fs/cgroup/a/b/cpu.max": "max 100000\n"}, None),
        ({"sys/fs/cgroup/a/b/cpu.max": "150000 100000\n"}, 1.5),
        ({"sys/fs/cgroup/a/cpu.max": "50000 100000\n"}, 0.5),  # the parent's limit holds
        ({"sys/fs/cgroup/cpu.max": "300000 100000\n"}, 3.0),  # seen from inside a container
        (
            {
                "sys/fs/cgroup/a/b/cpu.max": "300000 100000\n",
                "sys/fs/cgroup/a/cpu.max": "200000 100000\n",
            },
            2.0,
        ),
        ({"sys/fs/cgroup/unified/a/b/cpu.max": "200000 100000\n"}, 2.0),  # both versions mounted
        ({"sys/fs/cgroup/a/b/cpu.max": "much\n"}, None),
        ({"sys/fs/cgroup/a/b/cpu.max": "100000 0\n"}, None),
    ],
)
def test_quota_of_control_groups_2(
    tmp_path: Path, files: dict[str, str], quota: float | None
) -> None:
    assert read_quota(machine(tmp_path, V2 | files)) == quota


@pytest.mark.parametrize("mount", ["cpu,cpuacct", "cpu"])
@pytest.mark.parametrize("group", ["docker/x/", ""])
def test_quota_of_control_groups_1(tmp_path: Path, mount: str, group: str) -> None:
    folder = f"sys/fs/cgroup/{mount}/{group}"
    files = {f"{folder}cpu.cfs_quota_us": "250000\n", f"{folder}cpu.cfs_period_us": "100000\n"}
    assert read_quota(machine(tmp_path, V1 | files)) == 2.5
    files[f"{folder}cpu.cfs_quota_us"] = "-1\n"
    assert read_quota(machine(tmp_path, V1 | files)) is None


def test_a_group_outside_of_what_is_mounted_stays_below_the_mount(tmp_path: Path) -> None:
    files = {"proc/self/cgroup": "0::/../../x\n", "sys/fs/cgroup/cpu.max": "100000 100000\n"}
    assert read_quota(machine(tmp_path, files)) == 1.0


@pytest.mark.parametrize(("quota", "usable"), [("50000", 1), ("150000", 2), ("900000", 4)])
def test_quota_is_rounded_up(tmp_path: Path, quota: str, usable: int) -> None:
    root = machine(tmp_path, V2 | {"sys/fs/cgroup/cpu.max": f"{quota} 100000\n"})
    assert read_cores(root, {0, 1, 2, 3}).usable == usable


@pytest.mark.parametrize("text", ["", "\n", "a-b", "-"])
def test_what_is_no_list_of_cpus_is_empty(text: str) -> None:
    assert parse_cpu_list(text) == set()


def with_threads(monkeypatch: pytest.MonkeyPatch, detected: Cores, variable: str = "") -> None:
    settings: Settings = read_settings({"EDGERUN_THREADS": variable})
    monkeypatch.setattr(cores_module, "settings", lambda: settings)
    monkeypatch.setattr(cores_module, "cores", lambda: detected)


def test_siblings_may_be_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    with_threads(monkeypatch, Cores(8, 4, 4, None))
    assert [worker_threads(asked) for asked in (None, 1, 4, 8)] == [4, 1, 4, 8]


def test_the_variable_holds_where_nothing_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    with_threads(monkeypatch, Cores(8, 4, 4, None), "3")
    assert [worker_threads(asked) for asked in (None, 2)] == [3, 2]


def test_more_threads_than_cores_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with_threads(monkeypatch, Cores(8, 4, 4, None), "9")
    with pytest.raises(InputError, match="threads is 10, .* 8 logical cores: expected 1 to 8"):
        worker_threads(10)
    with pytest.raises(InputError, match="EDGERUN_THREADS is 9, .* best number here, 4"):
        worker_threads(None)
