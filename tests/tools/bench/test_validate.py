"""The simulator beside the stand-in: both see the same calls."""

from __future__ import annotations

import os

import numpy as np
import pytest

from edgerun.offload.estimates import Estimate
from edgerun.offload.places import Places
from edgerun.offload.standin.link import Link
from tools.bench.offload.validate import Costs, Measured, main, simulate
from tools.bench.offload.variation import SETTLED, Watched, drawn
from tools.bench.standin import precedence


def test_a_row_has_both_and_their_ratio(capsys: pytest.CaptureFixture[str]) -> None:
    sizes = "--calls 8 --experts 6 --top-k 2 --hidden 64 --width 32 --rows 2"
    assert main([*sizes.split(), "--devices", "memory=12K,link=1G"]) == 0
    cells = [cell.strip() for cell in capsys.readouterr().out.splitlines()[2].split("|")[1:-1]]
    device, rows, simulated, measured, ratio, *shares = cells
    assert (device, rows) == ("memory=12K,link=1G", "2")
    assert float(simulated) > 0 and float(measured) > 0
    assert float(ratio) == pytest.approx(float(simulated) / float(measured), abs=0.01, rel=0.2)
    assert all(share.endswith("%") for share in shares)


def test_what_is_simulated_follows_costs_and_what_is_there() -> None:
    """Experts 0 and 1 are on the device, which is faster; nothing else is worth its upload."""
    routes = np.float32([[0.5, 0.4, 0.3, 0.0]])
    calls = [(np.zeros((1, 1), np.float32), routes)] * 6
    costs = np.zeros((3, 2, 3))
    costs[:, 1] = 4e-3, 1e-3, 1.0
    costs[2] *= 2  # the last call
    starts_s = np.array([[0.0, 0.0, 0.0], [1e-3, 2e-3, 0.0], [1e-4, 7e-3, 0.0]])
    seen = Costs(
        costs,
        np.zeros(3),
        starts_s,
        np.zeros(3, np.bool_),
        np.ones(3, np.bool_),
        np.ones((3, 2, 6)),
    )
    measured = Measured([0.0] * 3, 0, 0, seen, frozenset({(0, 0), (0, 1)}), 2)
    simulation, seconds = simulate(measured, calls, 3)
    assert seconds == pytest.approx([4e-3, 5e-3, 11e-3])
    assert (simulation.there, simulation.outcome.experts) == (6, 9)
    assert Places.of(routes, 3).active == [0, 1, 2]


def test_calls_vary_as_those_before_them_did() -> None:
    """Each is like one of its kind that ran when estimates had settled, with all its resources."""
    ratios = np.repeat(np.arange(40.0)[:, None], 6, axis=1)
    ratios[:, 4] = np.nan
    ratios[SETTLED, 3] = np.nan
    ratios[::2, 2] = np.nan  # nothing was uploaded
    rows = drawn(ratios, 30)
    assert rows.shape == (10, 2, 6)
    assert (rows[:, :, 4] == 1).all()
    for kind in (0, 1):
        like = rows[:, kind, 0]
        assert (like % 2 == kind).all() and len(set(like)) > 3
        assert all(SETTLED <= each < call for call, each in enumerate(like, 30))
        assert (rows[:, kind, 1] == like).all()
    assert (rows[:, 1, 2] == rows[:, 1, 0]).all() and (rows[:, 0, 2] % 2 == 1).any()
    ratios[:, 2] = np.nan
    assert (drawn(ratios, 30)[:, :, 2] == 1).all()


def test_a_layer_takes_what_the_call_took_that_it_is_like() -> None:
    routes = np.float32([[0.5, 0.4, 0.3, 0.0]])
    calls = [(np.zeros((1, 1), np.float32), routes)] * 2
    costs = np.zeros((1, 2, 3))
    costs[:, 1] = 4e-3, 1e-3, 1.0
    ratios = np.array([[[2.0, 3.0, 1.0, 4.0, 5.0, 1.0], [9.0] * 6]])
    starts_s = np.array([[1e-3, 1e-4, 1e-4]])
    seen = Costs(costs, np.zeros(1), starts_s, np.zeros(1, np.bool_), np.ones(1, np.bool_), ratios)
    measured = Measured([0.0], 0, 0, seen, frozenset({(0, 0), (0, 1)}), 2)
    _, seconds = simulate(measured, calls, 3)
    assert seconds == pytest.approx([max(4 * 1e-3 + 2 * 4e-3, 5 * 1e-4 + 2 * 3 * 1e-3)])


def test_what_a_call_took_is_compared_with_what_was_expected_of_it() -> None:
    watched = Watched(1e-3)
    watched.observe(np.ones(2, np.int64), 4e-3)
    watched.observe(np.zeros(0, np.int64), 1.0)
    assert watched.ratio() == pytest.approx(2)
    assert np.isnan(watched.ratio())
    assert watched.of_one() > Estimate(1e-3).of_one()


def test_real_time_is_for_this_process_and_the_link_before_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked = []
    monkeypatch.setattr(os, "sched_setscheduler", lambda *given: asked.append(given))
    with precedence(False):
        pass
    assert not asked
    with precedence(True):
        link = Link(1e9, 0.0)
    link.close()
    priorities = [given[2].sched_priority for given in asked]
    assert asked[0][0] == 0 and asked[-1][0] == link._thread.native_id
    assert priorities[-1] == priorities[0] + 1


def test_who_may_not_have_real_time_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_given: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    expected = pytest.raises(SystemExit, match="--real-time needs a right that root has")
    monkeypatch.setattr(os, "sched_setscheduler", refuse)
    with expected, precedence(True):
        raise AssertionError
    monkeypatch.delattr(os, "sched_setscheduler")  # as on other systems
    with expected, precedence(True):
        raise AssertionError
