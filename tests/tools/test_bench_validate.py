"""The simulator beside the stand-in: both see the same calls."""

from __future__ import annotations

import numpy as np
import pytest

from edgerun.offload.places import Places
from tools.bench.offload.validate import Costs, Measured, main, simulate


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
    measured = Measured([0.0] * 3, 0, 0, Costs(costs, np.zeros(3)), frozenset({(0, 0), (0, 1)}), 2)
    simulation, seconds = simulate(measured, calls, 3)
    assert seconds == pytest.approx([4e-3, 4e-3, 8e-3])
    assert (simulation.there, simulation.outcome.experts) == (6, 9)
    assert Places.of(routes, 3).active.tolist() == [0, 1, 2]
