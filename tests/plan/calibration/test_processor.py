"""What ``doctor --calibrate`` measures, quickly and on small loads."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

from edgerun.backends.cpu.families import WEIGHT_BITS, paths_of
from edgerun.env import read_settings
from edgerun.errors import EdgerunError
from edgerun.formats.base import PackedWeight, unpack_bits
from edgerun.kernels.isa import selected_isa
from edgerun.machine import profile, timing
from edgerun.machine.devices import Call, DeviceProfile
from edgerun.machine.profile import MachineProfile, read_profile, write_profile
from edgerun.plan.calibration import kernels, peaks
from edgerun.plan.calibration import processor as calibration
from edgerun.plan.calibration.kernels import Rates, compiled, loads_of, measure_rates
from edgerun.plan.calibration.loads import BLOCK, Load, graph_of, random_weight
from edgerun.plan.calibration.processor import thread_counts
from tests.support.fakes import Meter

DEVICES = {"some:device, 1": DeviceProfile({"float/int4": (Call(1, 1, 1.0),)}, version="1")}
OTHERS = {"attention": {1: 1e9, 128: 2e9}}
MANY_ROWS = 32
SMALL = Load("int8_row", "ternary", 1, (256, 256), 3)


def measure_others(threads: int, start_s: float, measured: Rates) -> None:
    measured.others |= OTHERS
    measured.call_s = 1e-6


@pytest.fixture(autouse=True)
def quick(tmp_path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    chosen = read_settings({"EDGERUN_CACHE": str(tmp_path)})
    monkeypatch.setattr(profile, "settings", lambda: chosen)
    profile.machine_profile.cache_clear()
    monkeypatch.setattr(calibration, "BusyMeter", Meter(busy=False))
    monkeypatch.setattr(timing, "SECONDS", 0.0)
    monkeypatch.setattr(peaks, "REPEATS", 2)
    monkeypatch.setattr(peaks, "INSTRUCTIONS", 5)
    monkeypatch.setattr(kernels, "FAMILIES", (("int8_row", "ternary"),))  # compiles least
    sizes = {"ROW_LAYERS": 2, "ROWS": (MANY_ROWS,), "LAYERS": 1, "SIZE": 256}
    for name, value in {**sizes, "SECONDS": 0.0, "ROUNDS": 1}.items():
        monkeypatch.setattr(kernels, name, value)
    monkeypatch.setattr(calibration, "DECODING", replace(SMALL, chained=True, shared=False))
    monkeypatch.setattr(calibration, "measure_bandwidth", lambda threads: 1e9 * threads)
    monkeypatch.setattr(calibration, "measure_devices", lambda threads, progress: DEVICES)
    monkeypatch.setattr(kernels, "_measure_others", measure_others)
    monkeypatch.setattr(kernels, "ELEMENT_ROWS", MANY_ROWS)
    yield
    profile.machine_profile.cache_clear()


@pytest.mark.parametrize(
    ("most", "counts"), [(1, [1]), (2, [1, 2]), (6, [1, 2, 4, 6]), (8, [1, 2, 4, 8])]
)
def test_threads_double(most: int, counts: list[int]) -> None:
    assert thread_counts(most) == counts


def test_everything_is_measured_and_kept() -> None:
    said: list[str] = []
    found = calibration.calibrate(1, said.append)
    assert found == read_profile()
    assert found.complete
    assert set(found.bandwidth) == set(found.fork_join_s) == {1}
    assert set(found.peaks) == set(paths_of(selected_isa()))
    assert all(by_threads[1] > 0 for by_threads in found.peaks.values())
    assert len(found.rates) == len(kernels.FAMILIES)
    assert all(set(rates) == {1, MANY_ROWS} for rates in found.rates.values())
    assert min(rate for rates in found.rates.values() for rate in rates.values()) > 0
    assert found.contended is not None
    assert found.contended > 0
    assert any("ternary weights" in line for line in said)
    assert found.devices == DEVICES
    assert found.other_rates.items() >= OTHERS.items()
    assert set(found.other_rates).difference(OTHERS) == {"outputs/int8_row/ternary"}


def test_the_best_of_all_rounds_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """And starts, calls and rounding are no part of a rate."""
    seconds = iter([1.0, 2.0, 3.0, 5.0, 1.5, 4.0])  # of one row, many, and narrow ones
    monkeypatch.setattr(kernels, "ROUNDS", 2)
    monkeypatch.setattr(kernels, "ELEMENT_ROWS", MANY_ROWS)
    monkeypatch.setattr(kernels, "best_time", lambda run, least: next(seconds))
    measured = measure_rates(1, 0.05, lambda text: None)
    rates = measured.rates["int8_row/ternary"]
    one, many = loads_of("int8_row", "ternary")
    assert rates[1] == pytest.approx(one.multiply_adds / (1.0 - 1e-6 - 2 * 0.05))
    assert rates[MANY_ROWS] == pytest.approx(many.multiply_adds / (1.5 - 1e-6 - 2 * 0.05))
    narrow = kernels.narrow_load("int8_row", "ternary")
    outputs_s = 3.0 - 1e-6 - 2 * 0.05 - narrow.multiply_adds / rates[MANY_ROWS]
    outputs = narrow.rows * narrow.size[1] * narrow.layers
    kind = "outputs/int8_row/ternary"
    assert measured.others[kind][MANY_ROWS] >= outputs / outputs_s * (1 - 1e-9)


def test_what_multiplies_no_weights_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    small = {"WIDTH": 64, "NODES": 3, "ELEMENT_ROWS": 4, "HEAD_DIMS": (64,), "HEADS": 2}
    for name, value in {**small, "CACHED": 64, "ATTENTION_ROWS": (1,), "SECONDS": 0.0}.items():
        monkeypatch.setattr(kernels, name, value)
    measured = Rates()
    kernels._measure_others(1, 1e-9, measured)
    kinds = {"elements", "gate", "rounding/int8_row", "rounding/int8_block"}
    assert {name: set(by_rows) for name, by_rows in measured.others.items()} == {
        **dict.fromkeys(kinds, {4}),
        "attention/64": {1},
    }
    assert all(rate > 0 for by_rows in measured.others.values() for rate in by_rows.values())
    assert 0 < measured.call_s < 1


@pytest.mark.parametrize("threads", [1, 2])
def test_starting_an_instruction_costs_something(threads: int) -> None:
    assert 0 < peaks.measure_fork_join(threads) < 1


@pytest.mark.skipif(not selected_isa().looks_up, reason="nothing is looked up here")
def test_the_path_of_a_rate_is_what_the_program_takes() -> None:
    calibration.calibrate(1)
    paths = read_profile().paths["int8_row/ternary"]
    assert paths == {1: "multiply", MANY_ROWS: "lookup"}


@pytest.mark.parametrize(
    ("known", "now", "kept"), [(7.0, 5.0, 5.0), (7.0, 9.0, 7.0), (0.0, 9.0, 9.0), (7.0, 0.0, 7.0)]
)
def test_the_smallest_cost_counts_unless_it_is_none(
    monkeypatch: pytest.MonkeyPatch, known: float, now: float, kept: float
) -> None:
    write_profile(MachineProfile(bandwidth={1: 3e9}, fork_join_s={1: known}))
    monkeypatch.setattr(calibration, "measure_fork_join", lambda threads: now)
    assert calibration.limits(1).profile.fork_join_s == {1: kept}


def test_limits_are_measured_where_they_are_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    known = {"multiply": {1: 5.0, 2: 17.0}, "lookup": {1: 6.0}}
    write_profile(MachineProfile(bandwidth={1: 3e9}, peaks=known, fork_join_s={1: 7.0}))
    now = {"multiply": {2: 11.0}, "lookup": {2: 12.0}}
    monkeypatch.setattr(calibration, "measure_peaks", lambda counts: now)
    monkeypatch.setattr(calibration, "measure_fork_join", lambda threads: 13.0)
    found = calibration.limits(2).profile
    assert found == read_profile()
    assert found.bandwidth == {1: 3e9, 2: 2e9}
    assert found.peaks == {"multiply": {1: 5.0, 2: 17.0}, "lookup": {1: 6.0, 2: 12.0}}
    assert found.fork_join_s == {1: 7.0, 2: 13.0}


def test_the_best_speed_of_memory_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    write_profile(MachineProfile(bandwidth={1: 3e9}, fork_join_s={1: 7.0}))
    assert calibration.limits(1).profile.bandwidth == {1: 3e9}  # measured now: 1e9
    monkeypatch.setattr(calibration, "measure_bandwidth", lambda threads: 4e9)
    assert calibration.limits(1).profile.bandwidth == {1: 4e9}


def test_what_is_measured_on_a_busy_machine_is_shown_and_not_stored(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(calibration, "BusyMeter", Meter(busy=True))
    known = write_profile(MachineProfile(bandwidth={1: 3e9}))
    monkeypatch.setattr(calibration, "measure_fork_join", lambda threads: 7e-3)
    found = calibration.limits(1)
    assert found.profile.fork_join_s == {1: 7e-3}
    assert found.disturbance == "other programs used 1.3 of 2 CPUs meanwhile"
    assert read_profile() == known
    assert calibration.limits(1).profile.measured == known.measured


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
        one, many = loads_of("int8_row", weights)
        k, n = one.size
        assert k * n * bits / 8 == pytest.approx(kernels.HOT_BYTES, rel=1e-3)
        assert (one.rows, many.rows) == (1, MANY_ROWS)


@pytest.mark.parametrize("chained", [False, True])
@pytest.mark.parametrize("shared", [False, True])
def test_layers_are_chained_and_shared_as_asked(chained: bool, shared: bool) -> None:
    graph = graph_of(replace(SMALL, chained=chained, shared=shared))
    assert [node.inputs[0] for node in graph.nodes] == (["x", "y0", "y1"] if chained else ["x"] * 3)
    assert len(graph.constants) == (1 if shared else 3)


def test_a_load_computes_numbers() -> None:
    with compiled(replace(SMALL, chained=True), 1) as (_, run):
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
