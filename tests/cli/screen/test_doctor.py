"""What ``edgerun doctor`` says."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from edgerun.cli.screen.extras import EXTRAS
from edgerun.kernels.isa import selected_isa
from edgerun.machine.disk import DiskProfile
from edgerun.machine.profile import MachineProfile
from edgerun.machine.row_times import Layers, RowTimes, stored
from tests.cli.conftest import Run


def test_doctor_prints_one_object(run: Run) -> None:
    report = json.loads(run("doctor", "--json").out)
    assert report["edgerun"]["version"]
    assert report["back-ends"]["reference"] == "ready"
    assert set(report["folders"]) == {"cache", "state", "default_model"}
    assert report["machine"]["isa"] in report["machine"]["isas"]
    assert ("amx" in report["machine"]["isas"]) == (report["machine"]["amx"] == "permitted")
    units = {"amx": "amx"}
    if "avx512bf16" in report["machine"]["features"]:
        units["avx512vnni"] = "avx512bf16"
    assert report["machine"]["bfloat16"] == units.get(report["machine"]["isa"], "none")
    assert report["memory"]["total_bytes"] > 0
    cores = report["machine"]
    assert 1 <= cores["performance_cores"] <= cores["physical_cores"] <= cores["logical_cores"]
    assert run("doctor", "--all").out.startswith("edgerun\n  version")


def test_doctor_answers_in_six_lines(run: Run) -> None:
    lines = run("doctor").out.splitlines()
    titles = ["edgerun", "processor", "memory", "back-ends", "extras", "verdict"]
    assert [line.split()[0] for line in lines] == titles
    assert "nothing is missing" in lines[-1]


def test_doctor_names_what_is_wrong(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    from edgerun.cli import doctor

    report = json.loads(run("doctor", "--json").out)
    report["packages"]["tokenizers"] = "missing"
    report["back-ends"]["cpu"] = "broken: OSError: gone"
    assert doctor.brief(report)[-1].startswith(
        "verdict    tokenizers is missing, which `pip install tokenizers` mends; cpu is broken"
    )
    assert "not ready: cpu" in doctor.brief(report)[-3]


def test_doctor_says_which_extras_are_there_and_what_for(run: Run) -> None:
    from edgerun.cli import doctor

    report = json.loads(run("doctor", "--json").out)
    assert report["extras"].keys() == EXTRAS.keys()
    for extra in report["extras"].values():
        extra["missing"] = []
    report["extras"]["structured"]["missing"] = ["llguidance"]
    report["extras"]["serve"]["missing"] = ["uvicorn"]
    *_, line, verdict = doctor.brief(report)
    there, _, others = line.partition("; not installed: ")
    assert there.startswith("extras     export (making bundles of checkpoints), npu (")
    expected = "serve (edgerun serve; it lacks uvicorn), structured (replies that keep to a schema"
    assert others.startswith(expected)
    assert "nothing is missing" in verdict
    assert "\nextras\n  export " in run("doctor", "--all").out


def test_doctor_looks_for_what_extras_consist_of(repo_root: Path) -> None:
    text = (repo_root / "pyproject.toml").read_text("utf-8")
    section = text.partition("[project.optional-dependencies]\n")[2].partition("\n[")[0]
    declared = dict(re.findall(r"^(\w+) = (\[.*?\])(?=\s*(?:#.*)?$)", section, re.M | re.S))
    assert declared.pop("dev")
    always = {"numpy", "tomli"}  # one is no extra's own, one is for old interpreters
    names = {
        extra: set(re.findall(r'"([\w-]+)', packages)) - always
        for extra, packages in declared.items()
    }
    assert names == {name: set(extra.packages) for name, extra in EXTRAS.items()}


def test_doctor_refuses_a_folder_before_it_announces_anything(run: Run) -> None:
    result = run("doctor", "--calibrate", "/nowhere")
    assert result.code == 2
    assert result.err.splitlines() == [
        "edgerun: there is no folder /nowhere whose disk could be measured"
    ]


def row_times(**blocks: dict[int, float]) -> Layers:
    return (RowTimes({1: 0.25e-6, 4: 1e-6, 16: 4e-6}, blocks, threads=1),)


CALIBRATED = MachineProfile(
    measured="2026-01-01",
    bandwidth={1: 10e9, 2: 20e9},
    rates={"int8_row/ternary": {1: 50e9, 128: 100e9}},
    paths={"int8_row/ternary": {1: "multiply", 128: "lookup"}},
    peaks={"multiply": {2: 150e9}},
    fork_join_s={2: 3e-7},
    contended=0.61,
    threads=2,
    row_times={
        "avx2": stored(
            {
                "int8_row/int4": row_times(gemm={16: 3e-6, 128: 24e-6}),
                "int8_row/int8": row_times(gemm={16: 5e-6, 128: 40e-6}),
                "int8_row/ternary": row_times(gemm={16: 5e-6, 128: 40e-6}),  # without tables
            }
        ),
        **{
            name: stored({"int8_row/int4": row_times(gemm={16: 5e-6, 128: 40e-6})})
            for name in ("of another day", "portable", "avxvnni", "avx512vnni")
        },
    },
)


def test_doctor_shows_a_calibrated_machine(
    run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("some/model").mkdir(parents=True)
    calls: list[int] = []

    def calibrate(threads: int, progress: Any, folder: Path | None) -> None:
        assert folder == Path("some/model")
        calls.append(threads)
        progress("this and that")

    monkeypatch.setattr("edgerun.plan.calibration.processor.calibrate", calibrate)
    monkeypatch.setattr("edgerun.machine.profile.machine_profile", lambda: CALIBRATED)
    disk = DiskProfile({1: 4e8, 4: 8e8}, {1: 3e8}, "2026-01-02")
    disks = {"ext4 on /dev/a, at /": disk, "nfs on b:/c, at /d": DiskProfile({}, {2: 1e8})}
    monkeypatch.setattr("edgerun.machine.profile.read_disks", lambda: disks)
    result = run("doctor", "--calibrate", "some/model", "--json")
    assert "measuring this and that" in result.err
    assert len(calls) == 1
    profile = json.loads(result.out)["profile"]
    assert profile["read_gb_per_s"] == {"1": 10.0, "2": 20.0}
    assert profile["kernel_tops"] == {"int8_row/ternary": {"1": 0.1, "128": 0.2}}
    assert profile["kernel_paths"] == {"int8_row/ternary": {"1": "multiply", "128": "lookup"}}
    assert profile["int8_peak_tops"] == {"multiply": {"2": 0.3}}
    assert list(profile["row_paths"]) == ["avx512vnni", "avxvnni", "avx2", "portable"]
    assert set(profile["row_paths"]["avx2"]) == {"int8_row/int4", "int8_row/int8"}
    in_turns = {"1": 0.25, "4": 1.0, "16": 4.0}
    assert profile["row_paths"]["avx2"]["int8_row/int8"] == {
        "threads": 1,
        "blocks_by": None,
        "from_rows": None,
        "us_by_rows": [{"in turns": in_turns, "gemm": {"16": 5.0, "128": 40.0}}],
    }
    assert (profile["complete"], profile["contended"]) == (True, 0.61)
    assert json.loads(result.out)["disks"]["ext4 on /dev/a, at /"] == {
        "measured": "2026-01-02",
        "direct_gb_per_s": {"1": 0.4, "4": 0.8},
        "buffered_gb_per_s": {"1": 0.3},
        "is_direct": True,
        "threads": 4,
    }
    shown = run("doctor", "--all").out
    for words in (
        "0.61 of the idle speed",
        "avx2\tint8_row/int4\t1\tin turns 1: 0.25, 4: 1.0, 16: 4.0; gemm 16: 3.0, 128: 24.0\tgemm",
        "gemm 16: 5.0, 128: 40.0\tturns, always",
        "peak by multiply",
        "0.300 TOPS",
        "memory read with 2 threads",
        "ext4 on /dev/a, at /\t1: 0.400, 4: 0.800\t1: 0.300\tdirectly by 4 threads\t2026-01-02",
        "nfs on b:/c, at /d\trefused\t2: 0.100\tthrough the cache by 2 threads",
    ):
        assert words in shown


def test_doctor_says_in_one_line_that_times_of_rows_are_of_another_version(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    later = {"int8_row/int4": [{"version": 99, "rows": {"4096": 1.0}}]}
    monkeypatch.setattr("edgerun.machine.profile.absence", str)  # whatever this machine's file is
    profile = replace(CALIBRATED, row_times={selected_isa().name: later})
    for row_times, count in ((profile.row_times, 1), ({"another set": later}, 0)):
        measured = replace(profile, row_times=row_times)
        monkeypatch.setattr("edgerun.machine.profile.machine_profile", lambda given=measured: given)
        for arguments in ((), ("--all",)):
            (shown,) = [run("doctor", *arguments).out]
            lines = [line for line in shown.splitlines() if "times of rows in" in line]
            assert len(lines) == count
        assert ("calibrate` measures them anew" in shown) == bool(count)


def test_doctor_looks_at_a_folder_only_to_measure_its_disk(run: Run) -> None:
    result = run("doctor", "some/model")
    assert (result.code, result.out) == (2, "")
    assert "some/model: doctor looks at a folder with --calibrate only" in result.err
