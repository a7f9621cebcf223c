"""The profile of the machine: what is measured, kept and assumed."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from edgerun.env import read_settings
from edgerun.errors import StorageError
from edgerun.machine import profile
from edgerun.machine.devices import Call, DeviceProfile
from edgerun.machine.profile import FAST_TIMES, MachineProfile
from edgerun.machine.row_times import RowTimes, read_layers, stored
from edgerun.plan.calibration import processor
from tests.support.fakes import Meter

ROW_TIMES = RowTimes({1: 1e-6, 4: 4e-6, 16: 16e-6}, {"gemm": {16: 20e-6, 128: 99e-6}}, 1)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    chosen = read_settings({"EDGERUN_CACHE": str(tmp_path / "cache")})
    monkeypatch.setattr(profile, "settings", lambda: chosen)
    monkeypatch.setattr(profile, "BusyMeter", Meter(busy=False))
    profile.machine_profile.cache_clear()
    yield tmp_path / "cache"
    profile.machine_profile.cache_clear()


def test_speed_is_measured_once_per_number_of_threads(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []

    def measure(threads: int) -> float:
        asked.append(threads)
        return 1e9 * threads

    monkeypatch.setattr(profile, "measure_bandwidth", measure)
    assert [profile.machine_bandwidth(threads) for threads in (1, 2, 1, 2)] == [1e9, 2e9, 1e9, 2e9]
    assert asked == [1, 2]
    assert [path.name for path in folder.iterdir()] == [profile.FILE]


def test_what_another_process_writes_while_the_speed_is_measured_stays(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def measure(threads: int) -> float:
        profile.write_profile(FULL)
        return 5.0

    monkeypatch.setattr(profile, "measure_bandwidth", measure)
    assert profile.machine_bandwidth(99) == 5.0
    stored = profile.read_profile()
    assert stored.bandwidth == {**FULL.bandwidth, 99: 5.0}
    assert stored.rates == FULL.rates


def test_speed_on_a_busy_machine_is_not_kept(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(profile, "measure_bandwidth", lambda threads: 1e9)
    monkeypatch.setattr(profile, "BusyMeter", Meter(busy=True))
    assert profile.machine_bandwidth(1) == 1e9
    assert profile.read_profile() == MachineProfile()


@pytest.mark.parametrize("text", ["", "[]", '{"x": "fast"}', "null", '{"x": {"threads": "two"}}'])
def test_damaged_file_is_measured_again(
    folder: Path, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder.mkdir()
    (folder / profile.FILE).write_text(text)
    monkeypatch.setattr(profile, "measure_bandwidth", lambda threads: 5.0)
    assert profile.machine_bandwidth(1) == 5.0


@pytest.mark.parametrize(
    "figures",
    [
        {"bandwidth": {0: 1e9}},
        {"bandwidth": {1: 0.0}},
        {"bandwidth": {1: 1e9}, "rates": {"float/int4": {}}, "fork_join_s": {1: 1e-6}},
        {"fork_join_s": {1: -1e-6}},
        {"threads": 0},
        {"devices": {"a, 1": DeviceProfile({"float/int4": (Call(0, 1, 1.0),)})}},
        {"devices": {"a, 1": DeviceProfile({"float/int4": (Call(1, 1, 0.0),)})}},
        {"devices": {"a, 1": DeviceProfile({"float/int4": ()})}},
        {"devices": {"a, 1": DeviceProfile({})}},
        {"other_rates": {"attention/6x": {512: 1e9}}},
        {"other_rates": {"attention/0": {512: 1e9}}},
        {"other_rates": {"attention/-64": {512: 1e9}}},
        {"other_rates": {"attention/": {512: 1e9}}},
        {"other_rates": {"attention_bfloat16/64.5": {512: 1e9}}},
        {"other_rates": {"attention/1000000000": {512: 1e9}}},
    ],
    ids=str,
)
def test_figures_that_cannot_be_are_not_planned_with(folder: Path, figures: dict[str, Any]) -> None:
    profile.write_profile(MachineProfile(**figures))
    assert profile.read_profile() == MachineProfile()
    assert "is damaged" in profile.absence()


def test_a_file_that_others_may_write_is_not_believed_and_this_is_said(folder: Path) -> None:
    profile.write_profile(MachineProfile(bandwidth={1: 7.0}))
    assert profile.read_profile().bandwidth == {1: 7.0}
    (folder / profile.FILE).chmod(0o666)
    assert profile.read_profile() == MachineProfile()
    assert "others than its owner may write" in profile.absence()
    profile.write_profile(MachineProfile(bandwidth={1: 8.0}))
    assert profile.read_profile().bandwidth == {1: 8.0}


def test_a_pipe_instead_of_the_file_is_not_waited_for(folder: Path) -> None:
    folder.mkdir()
    os.mkfifo(folder / profile.FILE)
    assert profile.read_profile() == MachineProfile()
    assert "a pipe" in profile.absence()


def test_folder_that_cannot_be_written_is_no_error(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder.write_text("a file where the folder should be")
    monkeypatch.setattr(profile, "measure_bandwidth", lambda threads: 5.0)
    assert profile.machine_bandwidth(1) == 5.0


def test_a_full_disk_is_no_error_and_gets_no_fuller(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(source: str, target: Path) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(profile, "measure_bandwidth", lambda threads: 5.0)
    monkeypatch.setattr(profile.os, "replace", full)
    assert profile.machine_bandwidth(1) == 5.0
    assert list(folder.iterdir()) == []


LATER: dict[str, Callable[[dict[str, Any]], object]] = {
    "version": lambda times: times.update(version=99),
    "rows": lambda times: times["turns"].update({"-1": 1e-3}),
    "form": lambda times: times.update(turns=[[1, 1e-6], [4096, 1e-3]]),
}


@pytest.mark.parametrize("change", LATER.values(), ids=LATER.keys())
def test_times_of_rows_that_nothing_is_known_of_stay_and_spoil_nothing_else(
    folder: Path, change: Callable[[dict[str, Any]], object]
) -> None:
    names = ("a/b", "c/d")
    row_times = {"avx2": stored(dict.fromkeys(names, (ROW_TIMES,)))}
    written = profile.write_profile(replace(FULL, row_times=row_times))
    assert profile.read_profile() == written
    path = folder / profile.FILE
    content = json.loads(path.read_text())
    (own,) = content["profiles"].values()
    change(own["row_times"]["avx2"]["a/b"][0])
    path.write_text(json.dumps(content))
    changed = profile.read_profile()
    assert not profile.absence()
    assert replace(changed, row_times=row_times) == written
    by_family = changed.row_times["avx2"]
    assert [read_layers(by_family[name]) for name in names] == [(), (ROW_TIMES,)]
    profile.write_profile(changed)
    assert json.loads(path.read_text()) == content


def test_a_file_from_before_rows_were_timed_goes_on_being_read(folder: Path) -> None:
    written = profile.write_profile(FULL)
    path = folder / profile.FILE
    content = json.loads(path.read_text())
    for figures in content["profiles"].values():
        assert figures.pop("row_times") == {}
    path.write_text(json.dumps(content))
    assert profile.read_profile() == written
    assert not profile.absence()


FULL = MachineProfile(
    bandwidth={1: 10e9, 2: 18e9},
    rates={"int8_row/ternary": {1: 50e9, 128: 400e9}, "int8_block/int8": {1: 30e9, 128: 90e9}},
    paths={"int8_row/ternary": {1: "multiply", 128: "lookup"}},
    peaks={"multiply": {2: 300e9}, "lookup": {2: 350e9}},
    fork_join_s={1: 1e-7, 2: 5e-7},
    contended=0.6,
    threads=2,
    devices={
        "openvino:CPU, OpenVINO 1": DeviceProfile(
            {"float/int4": (Call(64, 1000, 1e-3),), "attention": (Call(64, 10, 1e-3, 256),)},
            version="OpenVINO 1",
            load_bytes_s=1e9,
        )
    },
)


def test_a_profile_is_read_as_it_was_written(folder: Path) -> None:
    dated = profile.write_profile(FULL)
    assert dated.measured
    assert profile.read_profile() == dated
    assert profile.machine_profile() == dated


def test_profiles_of_other_machines_stay(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keys = [f"machine {number}" for number in range(profile.PROFILES_KEPT + 3)]
    for key in keys:
        monkeypatch.setattr(profile, "machine_key", lambda key=key: key)
        profile.write_profile(FULL)
    assert list(profile._read()[0].profiles) == keys[-profile.PROFILES_KEPT :]


def test_other_kernels_are_another_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    profile.machine_key.cache_clear()
    monkeypatch.setattr("edgerun.kernels.jit.sources.code_version", lambda: "one")
    first = profile.machine_key()
    profile.machine_key.cache_clear()
    monkeypatch.setattr("edgerun.kernels.jit.sources.code_version", lambda: "two")
    assert first != profile.machine_key()
    profile.machine_key.cache_clear()


@pytest.mark.parametrize(
    ("rows", "rate"),
    [(1, 50e9), (2, 50e9 * 8 ** (1 / 7)), (16, 50e9 * 8 ** (4 / 7)), (128, 400e9), (512, 400e9)],
)
def test_between_numbers_of_rows_speeds_are_interpolated(rows: int, rate: float) -> None:
    assert FULL.rate("int8_row/ternary", rows) == pytest.approx(rate)


def test_attention_has_the_speed_of_the_nearest_size_of_heads() -> None:
    others = {"attention/64": {1: 10e9, 64: 30e9}, "attention/128": {64: 40e9}}
    measured = replace(FULL, other_rates=others)
    assert [measured.attention_rate(size, 64) for size in (16, 80, 96, 256)] == [
        30e9,
        30e9,
        40e9,
        40e9,
    ]
    assert measured.attention_rate(64, 1) == 10e9
    one_size = replace(FULL, other_rates={"attention": {64: 20e9}})
    assert one_size.attention_rate(128, 64) == 20e9


def test_attention_in_bfloat16_has_a_multiple_of_the_speed_of_exact_until_it_is_measured() -> None:
    exact = replace(FULL, other_rates={"attention/64": {64: 30e9}, "attention/128": {64: 40e9}})
    assert not exact.has_fast_attention
    assert exact.attention_rate(128, 64, fast=True) == FAST_TIMES * 40e9
    both = replace(exact, other_rates={**exact.other_rates, "attention_bfloat16/64": {64: 70e9}})
    assert both.has_fast_attention
    assert both.attention_rate(128, 64, fast=True) == 70e9
    assert both.attention_rate(128, 64) == 40e9


def test_what_was_not_measured_is_assumed_slow() -> None:
    assert FULL.rate("float/float32", 128) == 90e9
    nominal = MachineProfile().for_planning()
    assert nominal.rate("int8_row/ternary", 1) == profile.NOMINAL.rates[""][1]
    assert nominal.read_speed(4) == profile.NOMINAL.bandwidth[1]
    assert FULL.read_speed(8) == 18e9
    assert FULL.instruction_s(1) == 1e-7


def test_the_peak_is_the_fastest_that_was_seen_of_the_paths_taken() -> None:
    assert FULL.peak(2, ["multiply"]) == 300e9
    assert FULL.peak(2, ["lookup"]) == 400e9  # a kernel was faster than what should limit it
    assert FULL.peak(2, ["amx"]) == 300e9  # not measured
    assert FULL.peak(2) == 400e9
    assert FULL.peak(1) is None
    slower = replace(FULL, peaks={"multiply": {2: 40e9}, "lookup": {2: 500e9}})
    assert slower.peak(2, ["multiply"]) == 90e9
    assert slower.peak(2, ["lookup"]) == 500e9
    assert MachineProfile().peak(1) is None
    assert MachineProfile(peaks={"multiply": {1: 7e9, 2: 5e9, 4: 9e9}}).peak(2) == 7e9


OLD = (
    '{"%s": {"bandwidth": {"1": 9e9}, "int8_peak": {"1": 1.0}, "rates": {"int8_row/2": {"1": 1}}}}'
)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (OLD, "is damaged or of an older version of edgerun, so it is ignored"),
        ("{", "is damaged or of an older version of edgerun, so it is ignored"),
        ('{"format": 3, "profiles": {}}', "has format 3, this version of edgerun reads 4"),
        (
            '{"format": 4, "profiles": {"x": {}}}',
            "has profiles of other machines or other versions",
        ),
        ('{"format": 4, "profiles": {}}', ""),
        (None, ""),
    ],
)
def test_a_file_that_cannot_be_used_is_ignored_with_a_sentence(
    folder: Path, text: str | None, words: str
) -> None:
    if text is not None:
        folder.mkdir()
        (folder / profile.FILE).write_text(text.replace("%s", profile.machine_key()))
    assert profile.read_profile() == MachineProfile()
    assert words in profile.absence()
    assert bool(profile.absence()) == bool(words)
    assert ("--calibrate" in profile.absence()) == bool(words)
    profile.write_profile(FULL)
    assert profile.absence() == ""
    assert profile.read_profile().rates == FULL.rates


@pytest.mark.parametrize("part", ["bandwidth", "rates", "fork_join_s"])
def test_plans_never_mix_measured_and_nominal_speeds(part: str) -> None:
    assert FULL.for_planning() is FULL
    assert replace(FULL, **{part: {}}).for_planning() is profile.NOMINAL  # type: ignore[arg-type]


def test_only_a_whole_profile_is_complete() -> None:
    assert FULL.complete
    assert not MachineProfile().complete
    assert not replace(FULL, rates={}).complete


def test_a_device_counts_with_its_driver_only_and_beside_a_measured_processor() -> None:
    key = "openvino:CPU, OpenVINO 1"
    assert FULL.device("openvino:CPU", "OpenVINO 1") is FULL.devices[key]
    assert FULL.device("openvino:CPU", "OpenVINO 2") is None
    assert FULL.device("openvino:GPU", "OpenVINO 1") is None
    assert FULL.other_versions("openvino:CPU", "OpenVINO 2") == ["OpenVINO 1"]
    assert FULL.other_versions("openvino:CPU", "OpenVINO 1") == []
    assert FULL.other_versions("openvino:GPU", "OpenVINO 2") == []
    assert replace(FULL, bandwidth={}).device("openvino:CPU", "OpenVINO 1") is None


def test_what_cannot_be_stored_is_said_before_and_after_measuring(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").touch()
    chosen = read_settings({"EDGERUN_CACHE": str(tmp_path / "file" / "cache")})
    monkeypatch.setattr(profile, "settings", lambda: chosen)
    monkeypatch.setattr(processor, "_measure_all", lambda *_: pytest.fail("measured"))
    with pytest.raises(StorageError, match=r"file/cache/machine.json cannot be written \(Not a d"):
        processor.calibrate(1)
    profile.write_profile(MachineProfile(bandwidth={1: 7.0}))
    assert "what was measured is not stored" in caplog.text
