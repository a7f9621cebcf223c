"""The table of predicted and measured prompts."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import cast

import pytest

from edgerun.llm.llm import LLM
from edgerun.machine.profile import MULTIPLY, MachineProfile
from tests.support.bundles import bundle_of
from tools.bench import gauge, placement
from tools.bench.gauge import MEMORY, Gauge, is_as_calibrated
from tools.bench.placement import Cell, Row, table

DEVICE = "openvino:CPU"


def row(tokens: int, predicted: tuple[float, float], measured: tuple[float, float]) -> Row:
    places = ("cpu", DEVICE)
    by_place = [dict(zip(places, each, strict=True)) for each in (predicted, measured)]
    counted, left_out = ({place: runs for place in places} for runs in (3, 1))
    return Row("some", tokens, *by_place, "cpu", counted, left_out)


def test_the_table_is_markdown_and_says_what_it_comes_to() -> None:
    rows = [
        row(32, (0.1, 0.2), (0.11, 0.3)),
        row(2048, (2.0, 1.0), (1.0, 0.96)),
        row(512, (1.0, 1.0), (1.0, 0.9)),
    ]
    assert [each.is_well_chosen for each in rows] == [True, True, False]
    lines = list(table(rows))
    assert lines[0].count("|") == lines[1].count("|") == lines[2].count("|")
    assert lines[2] == (
        "| some | 32 | 100 | 110 | 0.91 | 3 + 1 | 200 | 300 | 0.67 | 3 + 1 | cpu | cpu |"
    )
    assert lines[3].startswith("| some | 2,048 | 2000 | 1000 | 2.00 | 3 + 1 | 1000 | 960 | 1.04 |")
    assert lines[-3:] == [
        "cpu: 2 of 3 predictions within 15%",
        f"{DEVICE}: 2 of 3 predictions within 15%",
        "chosen is the best, or within 5% of it: 2 of 3",
    ]


def test_prompts_are_measured_in_both_places(monkeypatch: pytest.MonkeyPatch) -> None:
    """The device of this test is the processor, and what is predicted is made up."""

    class Forecast:
        call_rows = 256

        def seconds_here(self, tokens: int) -> float:
            return 1.0 * tokens

        def seconds_there(self, tokens: int) -> float:
            return 2.0 * tokens

    monkeypatch.setattr(placement, "predict", lambda folder, device, tokens: (Forecast(), "cpu"))
    monkeypatch.setattr(placement, "reading_seconds", lambda folder, tokens, call_rows: 0.0)
    monkeypatch.setattr(placement, "PAUSE_S", 0.0)
    folder = Path(bundle_of("llama", weights="int4"))
    rows = list(placement.measure(folder, "reference", [5, 10**6], 0.0, Steady()))
    assert [each.tokens for each in rows][0] == 5
    assert len(rows) == 2 and rows[1].tokens < 10**6  # as long as the context allows
    for each in rows:
        assert each.predicted == {"cpu": 1.0 * each.tokens, "reference": 2.0 * each.tokens}
        assert min(each.measured.values()) > 0
        assert each.counted == dict.fromkeys(each.measured, placement.FEWEST_RUNS)
        assert each.left_out == dict.fromkeys(each.measured, 0)


class Steady(Gauge):
    """A machine that multiplies as it did, or as a test says, and reads half as fast."""

    def __init__(self, *speeds: float) -> None:
        self._speeds = iter(speeds)

    def speeds(self) -> dict[str, float]:
        return {MULTIPLY: next(self._speeds, 1.0), MEMORY: 0.5}


class Clock:
    """Prompts that take what a test says."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *seconds: float) -> None:
        self._seconds = iter(seconds)
        self.numbers: list[int] = []
        monkeypatch.setattr(placement, "seconds", self.seconds)
        monkeypatch.setattr(placement, "PAUSE_S", 0.0)
        monkeypatch.setattr(placement, "RUN_S", 0.0)

    def seconds(self, llm: object, tokens: int, number: int) -> float:
        self.numbers.append(number)
        return next(self._seconds)


def test_runs_of_another_machine_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first warms up; of the others, those count before and after which speeds are as then."""
    clock = Clock(monkeypatch, 0.1, 0.2, 3.0, 0.3, 4.0, 5.0)
    speeds = (1.0, 1.01), (1.0, 0.9), (0.93, 1.07), (1.1, 1.0), (0.5, 0.5)
    steady = Steady(*(each for pair in speeds for each in pair))
    cell = Cell(cast(LLM, None), 32, steady, count(), memory_share=0.0)
    for _ in speeds:
        cell.take()
    assert cell.counted == [0.2, 0.3] and cell.left_out == [3.0, 4.0, 5.0]
    assert cell.seconds == 0.2
    assert clock.numbers == list(range(6))  # no prompt twice


@pytest.mark.parametrize(("share", "is_same"), [(0.0, True), (0.05, True), (0.1, False)])
def test_memory_counts_by_its_share(share: float, is_same: bool) -> None:
    assert is_as_calibrated({MULTIPLY: 1.0, MEMORY: 0.5}, share) is is_same


def test_a_machine_that_stays_another_costs_a_bounded_number_of_runs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    Clock(monkeypatch, *[0.5] * 100)
    monkeypatch.setattr(placement, "MOST_REPEATS", 3)
    cell = Cell(cast(LLM, None), 32, Steady(*[0.5] * 100), count(), memory_share=0.0)
    assert not cell.is_enough
    for _ in range(10):
        cell.take()
    assert cell.is_enough and cell.is_finished
    assert (len(cell.counted), len(cell.left_out)) == (0, 3)
    assert cell.seconds == 0.5


def test_a_cell_without_runs_that_count_says_so() -> None:
    cell = replace(row(32, (0.1, 0.2), (0.11, 0.3)), counted={"cpu": 1, DEVICE: 2})
    assert cell.runs("cpu") == "1 + 1 (too few)" and cell.runs(DEVICE) == "2 + 1"


def test_the_gauge_compares_with_the_calibration(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gauge, "best_pass", lambda team, program, seconds: 0.25)
    monkeypatch.setattr(gauge, "BUFFER_BYTES", 1 << 20)
    products = 2 * gauge.CHUNKS * gauge.PROBES[MULTIPLY](1, gauge.REPEATS).products
    peaks = {MULTIPLY: {2: 8.0 * products}}  # so that it took 1/8 s then
    profile = MachineProfile(bandwidth={2: 2.0 * (1 << 20)}, peaks=peaks, threads=2)
    with closing(Gauge(profile)) as then:
        assert then.speeds() == {MULTIPLY: 0.5, MEMORY: 2.0}
