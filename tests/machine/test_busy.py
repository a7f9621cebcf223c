"""How much other programs use the machine, as the system counts it."""

from __future__ import annotations

import time

import pytest

from edgerun.machine import busy
from edgerun.machine.busy import BusyMeter, _Times


@pytest.fixture
def times(monkeypatch: pytest.MonkeyPatch) -> list[_Times]:
    """What the system will say, one entry a reading, on two CPUs."""
    readings: list[_Times] = []
    monkeypatch.setattr(busy, "allowed_cpus", lambda: {0, 1})
    monkeypatch.setattr(busy, "_read_times", lambda: readings.pop(0))
    return readings


@pytest.mark.parametrize(
    ("everyone", "own", "other_cpus", "is_busy"),
    [
        (4.0, 4.0, 0.0, False),  # both CPUs are ours
        (4.0, 2.4, 0.8, True),
        (4.0, 3.64, 0.18, False),
        (4.0, 3.56, 0.22, True),
        (0.0, 4.0, 0.0, False),  # a system that counts nothing
    ],
)
def test_what_others_use_is_what_is_used_and_not_ours(
    times: list[_Times], everyone: float, own: float, other_cpus: float, is_busy: bool
) -> None:
    times += [_Times(10.0, 100.0, 50.0), _Times(12.0, 100.0 + everyone, 50.0 + own)]
    with BusyMeter() as meter:
        assert not meter.busy
    assert meter.other_cpus == pytest.approx(other_cpus)
    assert meter.busy == is_busy
    assert f"other programs used {other_cpus:.1f} of 2 CPUs" in meter.describe()


def test_work_of_this_process_is_its_own() -> None:
    before, start = busy._read_times(), time.process_time()
    while time.process_time() < start + 0.2:
        pass
    after = busy._read_times()
    assert after.own - before.own >= 0.15  # the system's clock ticks every hundredth
    assert after.everyone - before.everyone >= 0.15
