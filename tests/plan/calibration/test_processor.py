"""What ``doctor --calibrate`` measures, quickly and on small loads."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np
import pytest

from edgerun.backends.base import Progress
from edgerun.backends.cpu.families import LOOKUP, REGROUPED, WEIGHT_BITS, paths_of
from edgerun.backends.cpu.row_paths import measured_paths, possible_paths
from edgerun.env import read_settings
from edgerun.errors import EdgerunError
from edgerun.formats.base import PackedWeight, unpack_bits
from edgerun.kernels.isa import selected_isa
from edgerun.machine import profile, timing
from edgerun.machine.devices import Call, DeviceProfile
from edgerun.machine.profile import MachineProfile, read_profile, write_profile
from edgerun.machine.row_times import (
    BLOCKS,
    TURNS,
    BlockPath,
    Layers,
    RowTimes,
    read_layers,
    stored,
)
from edgerun.plan.calibration import kernels, peaks, row_times
from edgerun.plan.calibration import processor as calibration
from edgerun.plan.calibration.kernels import (
    CALL,
    compiled,
    every_trial,
    loads_of,
    narrow_load,
    rates_of,
    time_trials,
    trial_of,
)
from edgerun.plan.calibration.loads import BLOCK, Load, graph_of, random_weight
from edgerun.plan.calibration.peaks import StartTimes
from edgerun.plan.calibration.processor import thread_counts
from tests.support.fakes import Meter

DEVICES = {"some:device, 1": DeviceProfile({"float/int4": (Call(1, 1, 1.0),)}, version="1")}
MANY_ROWS = 32
SMALL = Load("int8_row", "ternary", 1, (256, 256), 3)


@pytest.fixture(autouse=True)
def quick(tmp_path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    chosen = read_settings({"EDGERUN_CACHE": str(tmp_path)})
    monkeypatch.setattr(profile, "settings", lambda: chosen)
    profile.machine_profile.cache_clear()
    monkeypatch.setattr(calibration, "BusyMeter", Meter(busy=False))
    monkeypatch.setattr(timing, "SECONDS", 0.0)
    monkeypatch.setattr(peaks, "REPEATS", 2)
    monkeypatch.setattr(peaks, "INSTRUCTIONS", 4)
    monkeypatch.setattr(peaks, "START_SECONDS", 0.0)
    monkeypatch.setattr(kernels, "FAMILIES", (("int8_row", "ternary"),))  # compiles least
    sizes = {"ROW_LAYERS": 2, "ROWS": (MANY_ROWS,), "LAYERS": 1, "SIZE": 256, "NARROW": 64}
    small = {"WIDTH": 64, "NODES": 3, "ELEMENT_ROWS": MANY_ROWS, "HEAD_DIMS": (64,), "HEADS": 2}
    least = {"CACHED": 64, "ATTENTION_ROWS": (1,), "FAST_ROWS": (), "SECONDS": 0.0, "ROUNDS": 1}
    for name, value in {**sizes, **small, **least}.items():
        monkeypatch.setattr(kernels, name, value)
    monkeypatch.setattr(calibration, "DECODING", replace(SMALL, chained=True, shared=False))
    sizes_of_rows = {"SIZES": (((256, 256), 1), ((512, 256), 2))}
    for name, value in {**sizes_of_rows, "ROUNDS": 1, "SECONDS": 0.0}.items():
        monkeypatch.setattr(row_times, name, value)
    monkeypatch.setattr(calibration, "measure_bandwidth", lambda threads: 1e9 * threads)
    monkeypatch.setattr(calibration, "measure_devices", lambda threads, progress: DEVICES)
    yield
    profile.machine_profile.cache_clear()


@pytest.mark.parametrize(
    ("most", "counts"), [(1, [1]), (2, [1, 2]), (6, [1, 2, 4, 6]), (8, [1, 2, 4, 8])]
)
def test_threads_double(most: int, counts: list[int]) -> None:
    assert thread_counts(most) == counts


def test_everything_is_measured_and_kept() -> None:
    said: list[str] = []
    profile = calibration.calibrate(1, said.append)
    assert profile == read_profile()
    assert profile.complete
    assert set(profile.bandwidth) == set(profile.fork_join_s) == {1}
    assert set(profile.peaks) == set(paths_of(selected_isa()))
    assert all(by_threads[1] > 0 for by_threads in profile.peaks.values())
    assert len(profile.rates) == len(kernels.FAMILIES)
    assert all(set(rates) == {1, MANY_ROWS} for rates in profile.rates.values())
    assert min(rate for rates in profile.rates.values() for rate in rates.values()) > 0
    assert profile.contended is not None
    assert profile.contended > 0
    assert "kernels, round 1 of 1" in said
    assert profile.devices == DEVICES
    kinds = {"elements", "gate", "rounding/int8_row", "rounding/int8_block"}
    assert {name: set(by_rows) for name, by_rows in profile.other_rates.items()} == {
        **dict.fromkeys(kinds, {MANY_ROWS}),
        "attention/64": {1},
        "outputs/int8_row/ternary": {MANY_ROWS},
    }
    assert all(rate > 0 for by_rows in profile.other_rates.values() for rate in by_rows.values())
    assert set(profile.paths) == {"int8_row/ternary"}
    isa = selected_isa()
    (layers,) = map(read_layers, profile.row_times[isa.name].values())
    assert [times.threads for times in layers] == [1, 1]
    for times in layers:
        assert set(times.turns) == set(TURNS)
        assert set(times.blocks) == set(possible_paths(isa, "int8_row/ternary"))
        assert all(set(by_rows) == set(BLOCKS) for by_rows in times.blocks.values())
    assert measured_paths(isa, profile, 1).keys() == {"int8_row/ternary"}
    assert 0 < profile.call_s < 1


def test_speeds_are_those_of_what_the_times_of_rows_say(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plans estimate with what programs will do, not with what they did before."""
    isa, name = selected_isa(), "int8_row/ternary"
    paths = possible_paths(isa, name)
    blocks = {path: {16: 1e-6, 128: 8e-6} for path in paths}
    together = RowTimes({1: 1.0, 4: 4.0, 16: 16.0}, blocks, threads=2)
    alone = RowTimes({1: 1e-9, 4: 4e-9, 16: 16e-9}, blocks, threads=1)  # of which none are taken
    family_times = {name: (alone, together)}
    counts: list[Sequence[int]] = []
    other = {"another set": stored({name: (RowTimes({1: 1.0, 4: 2.0, 16: 3.0}, {}, 1),)})}
    write_profile(MachineProfile(row_times=other))

    def time_rows(thread_counts: Sequence[int], progress: Progress) -> Mapping[str, Layers]:
        counts.append(thread_counts)
        return family_times

    monkeypatch.setattr(calibration, "time_rows", time_rows)
    given: list[Mapping[str, BlockPath]] = []
    time = calibration.time_trials

    def noted(
        threads: int, progress: Progress, row_paths: Mapping[str, BlockPath]
    ) -> tuple[kernels.Seconds, kernels.Paths]:
        given.append(row_paths)
        return time(threads, progress, row_paths)

    monkeypatch.setattr(calibration, "time_trials", noted)
    profile = calibration.calibrate(2)
    assert counts == [[1, 2]]
    assert profile.row_times == {isa.name: stored(family_times), **other}
    (row_paths,) = given
    assert row_paths[name].name in paths
    assert 2 <= row_paths[name].least < 16


def test_rows_are_timed_with_every_number_of_threads() -> None:
    ((name, layers),) = row_times.time_rows([1, 2], lambda text: None).items()
    assert name == "int8_row/ternary"
    assert [times.threads for times in layers] == [1, 1, 2, 2]


def test_the_best_of_several_moments_is_what_memory_can_do(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    speeds = iter([2e9, 5e9, 3e9])  # before the kernels, after them, after the devices
    sizes_of_rows = {"SIZES": (((256, 256), 1), ((512, 256), 2))}
    for name, value in {**sizes_of_rows, "ROUNDS": 1, "SECONDS": 0.0}.items():
        monkeypatch.setattr(row_times, name, value)
    monkeypatch.setattr(calibration, "measure_bandwidth", lambda threads: next(speeds))
    assert calibration.calibrate(1).bandwidth == {1: 5e9}


def test_the_best_of_several_moments_is_what_starting_and_multiplying_take(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Threads that wait for one another take 30 times as long while a neighbour is busy."""
    moments = [(7e-3, 9e-4, 1e-5), (3e-3, 1e-3, 2e-5), (4e-3, 2e-3, 3e-5)]
    starts, speeds = (StartTimes(*each) for each in moments), iter([3e11, 4e11, 2e11])
    cost = (3e-3 - 9e-4) / peaks.INSTRUCTIONS
    subtracted: list[float] = []
    rates_of = calibration.rates_of

    def noted(seconds: kernels.Seconds, paths: kernels.Paths, start_s: float) -> kernels.Rates:
        subtracted.append(start_s)
        return rates_of(seconds, paths, start_s)

    monkeypatch.setattr(calibration, "rates_of", noted)
    monkeypatch.setattr(calibration, "measure_starts", lambda threads: next(starts))
    monkeypatch.setattr(
        calibration, "measure_peaks", lambda counts: {"multiply": {1: next(speeds)}}
    )
    measured = calibration.calibrate(1)
    assert measured.fork_join_s == {1: pytest.approx(cost)}
    assert measured.peaks == {"multiply": {1: 4e11}}
    assert subtracted == [pytest.approx(cost)]


def test_the_quickest_of_all_rounds_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    (trial,) = [each for each in every_trial() if each.name == "attention/64"]
    key, seconds = (trial.name, trial.rows), iter([5.0, 3.0, 4.0])
    monkeypatch.setattr(kernels, "ROUNDS", 3)
    monkeypatch.setattr(kernels, "every_trial", lambda: iter([trial]))
    monkeypatch.setattr(kernels, "best_time", lambda run, least: next(seconds))
    assert time_trials(1, lambda text: None)[0] == {key: 3.0}


def test_rates_are_what_is_left_without_calls_starts_and_rounding() -> None:
    """Times are made of known parts, and these are found again."""
    start, call, attends = 1e-9, 1e-6, 2.0
    seconds = {(CALL, 1): call + 3 * start, ("attention/64", 1): call + 3 * start + attends}
    element = {
        "elements": 1e-3,
        "gate": 2e-3,
        "rounding/int8_row": 3e-3,
        "rounding/int8_block": 4e-3,
    }
    for name, each in element.items():
        with_norm = each + (element["elements"] if "rounding" in name else 0.0)
        for count in (1, kernels.NODES):
            elements = MANY_ROWS * kernels.WIDTH * count
            key = kernels.counted(name, count), MANY_ROWS
            seconds[key] = call + count * start + elements * with_norm
    product, output, family = 1e-4, 4e-3, "int8_row/ternary"
    narrow = narrow_load("int8_row", "ternary")
    for load in [*loads_of("int8_row", "ternary"), narrow]:
        name = f"outputs/{family}" if load is narrow else family
        outputs = load.rows * load.size[1] * load.layers if load is narrow else 0
        starts = load.layers * start * (2 if load.rows > 16 else 1)
        rounded = load.rows * load.size[0] * element["rounding/int8_row"]
        work = load.multiply_adds * product + outputs * output
        seconds[name, load.rows] = call + starts + rounded + work
    measured = rates_of(seconds, {}, start)
    assert measured.call_s == pytest.approx(call)
    assert measured.rates[family] == pytest.approx({1: 1 / product, MANY_ROWS: 1 / product})
    others = dict(measured.others)
    assert others.pop("attention/64") == pytest.approx({1: 2 * 2 * 64 * 128 / attends})
    assert others.pop(f"outputs/{family}") == pytest.approx({MANY_ROWS: 1 / output})
    expected = {name: 1 / each for name, each in element.items()}
    assert {name: by_rows[MANY_ROWS] for name, by_rows in others.items()} == pytest.approx(expected)


def test_what_is_said_to_cost_more_than_all_leaves_half() -> None:
    """So that a noisy figure spoils no other."""
    seconds = {
        (CALL, 1): 1.0,
        ("attention/64", 1): 0.5,
        **{
            (kernels.counted(name, count), MANY_ROWS): 0.5
            for name in kernels.ELEMENT_GRAPHS
            for count in (1, kernels.NODES)
        },
    }
    for load in loads_of("int8_row", "ternary"):
        seconds["int8_row/ternary", load.rows] = 0.5
    seconds["outputs/int8_row/ternary", MANY_ROWS] = 0.5
    measured = rates_of(seconds, {}, 1.0)
    for load in loads_of("int8_row", "ternary"):
        rate = measured.rates["int8_row/ternary"][load.rows]
        assert rate == pytest.approx(load.multiply_adds / 0.25)
    assert all(rate > 0 for by_rows in measured.others.values() for rate in by_rows.values())


@pytest.mark.parametrize("threads", [1, 2])
def test_starting_an_instruction_costs_something(threads: int) -> None:
    assert 0 < peaks.measure_starts(threads).instruction_s < 1


@pytest.mark.skipif(not selected_isa().looks_up, reason="nothing is looked up here")
def test_the_path_of_a_rate_is_what_the_program_takes() -> None:
    calibration.calibrate(1)
    path = measured_paths(selected_isa(), read_profile(), 1)["int8_row/ternary"]
    is_looked_up = path.name == LOOKUP and path.least <= MANY_ROWS
    expected = {1: "multiply", MANY_ROWS: "lookup" if is_looked_up else "multiply"}
    assert read_profile().paths["int8_row/ternary"] == expected


def starting_takes(seconds: float) -> Callable[[int], StartTimes]:
    times = StartTimes(seconds * peaks.INSTRUCTIONS, 0.0, 0.0)
    return lambda threads: times


@pytest.mark.parametrize(
    ("before", "now", "expected"),
    [(7.0, 5.0, 5.0), (7.0, 9.0, 7.0), (0.0, 9.0, 9.0), (7.0, 0.0, 7.0)],
)
def test_the_smallest_cost_counts_unless_it_is_none(
    monkeypatch: pytest.MonkeyPatch, before: float, now: float, expected: float
) -> None:
    write_profile(MachineProfile(bandwidth={1: 3e9}, fork_join_s={1: before}))
    monkeypatch.setattr(calibration, "measure_starts", starting_takes(now))
    assert calibration.limits(1).profile.fork_join_s == {1: expected}


def test_limits_are_measured_where_they_are_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    stored_peaks = {"multiply": {1: 5.0, 2: 17.0}, "lookup": {1: 6.0}}
    write_profile(MachineProfile(bandwidth={1: 3e9}, peaks=stored_peaks, fork_join_s={1: 7.0}))
    now = {"multiply": {2: 11.0}, "lookup": {2: 12.0}}
    monkeypatch.setattr(calibration, "measure_peaks", lambda counts: now)
    monkeypatch.setattr(calibration, "measure_starts", starting_takes(13.0))
    measured = calibration.limits(2).profile
    assert measured == read_profile()
    assert measured.bandwidth == {1: 3e9, 2: 2e9}
    assert measured.peaks == {"multiply": {1: 5.0, 2: 17.0}, "lookup": {1: 6.0, 2: 12.0}}
    assert measured.fork_join_s == {1: 7.0, 2: 13.0}


def test_the_best_speed_of_memory_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    write_profile(MachineProfile(bandwidth={1: 3e9}, fork_join_s={1: 7.0}))
    slow = calibration.limits(1)
    assert (slow.profile.bandwidth, slow.memory_bytes_s) == ({1: 3e9}, 1e9)
    sizes_of_rows = {"SIZES": (((256, 256), 1), ((512, 256), 2))}
    for name, value in {**sizes_of_rows, "ROUNDS": 1, "SECONDS": 0.0}.items():
        monkeypatch.setattr(row_times, name, value)
    monkeypatch.setattr(calibration, "measure_bandwidth", lambda threads: 4e9)
    assert calibration.limits(1).profile.bandwidth == {1: 4e9}


def test_what_is_measured_on_a_busy_machine_is_shown_and_not_stored(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(calibration, "BusyMeter", Meter(busy=True))
    written = write_profile(MachineProfile(bandwidth={1: 3e9}))
    monkeypatch.setattr(calibration, "measure_starts", starting_takes(7e-3))
    limits = calibration.limits(1)
    assert limits.profile.fork_join_s == {1: 7e-3}
    assert limits.disturbance == "other programs used 1.3 of 2 CPUs meanwhile"
    assert limits.memory_bytes_s == 1e9
    assert read_profile() == written
    assert calibration.limits(1).profile.measured == written.measured


def test_a_busy_machine_is_not_calibrated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calibration, "BusyMeter", Meter(busy=True))
    with pytest.raises(EdgerunError, match=r"nothing was stored: other programs used 1\.3 of 2"):
        calibration.calibrate(1)
    assert read_profile() == MachineProfile()


def test_without_another_process_the_contended_speed_is_unknown(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(calibration.sys, "executable", "/nowhere/python")
    assert calibration.measure_contended(1) is None


def test_weights_of_one_row_fit_the_cache_whatever_their_bits() -> None:
    for weights, bits in WEIGHT_BITS.items():
        single, many = loads_of("int8_row", weights)
        k, n = single.size
        assert k * n * bits / 8 == pytest.approx(kernels.HOT_BYTES, rel=1e-3)
        assert (single.rows, many.rows) == (1, MANY_ROWS)


@pytest.mark.parametrize("chained", [False, True])
@pytest.mark.parametrize("shared", [False, True])
def test_layers_are_chained_and_shared_as_asked(chained: bool, shared: bool) -> None:
    graph = graph_of(replace(SMALL, chained=chained, shared=shared))
    assert [node.inputs[0] for node in graph.nodes] == (["x", "y0", "y1"] if chained else ["x"] * 3)
    assert len(graph.constants) == (1 if shared else 3)


@pytest.mark.parametrize("form", [("int8_row", "ternary"), ("int8_block", REGROUPED)])
def test_a_load_computes_numbers(form: tuple[str, str]) -> None:
    load = replace(SMALL, chained=True, activations=form[0], weights=form[1])
    with compiled(trial_of("small", load), 1) as (_, run):
        (values,) = run().values()
    assert np.isfinite(values).all()
    assert values.any()


@pytest.mark.parametrize("name", ["int2", "int4", "int8"])
def test_random_weights_are_whole(name: str) -> None:
    weight = random_weight(name, (64, 8), 0)
    assert isinstance(weight, PackedWeight)
    assert f"int{weight.bits}" == weight.format == name
    assert (weight.shape, weight.block) == ((8, 64), BLOCK)


@pytest.mark.parametrize("name", ["ternary", "trits"])
def test_ternary_weights_have_three_codes(name: str) -> None:
    weight = random_weight(name, (64, 8), 0)
    assert isinstance(weight, PackedWeight)
    assert weight.format == "ternary"
    assert set(np.unique(unpack_bits(weight.codes, 2))) == {1, 2, 3}


def test_float_weights_are_dense() -> None:
    weight = random_weight("float32", (64, 8), 0)
    assert isinstance(weight, np.ndarray)
    assert (weight.shape, weight.dtype) == ((8, 64), np.float32)
