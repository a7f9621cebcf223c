"""Fixtures of the tests that look at the overlay's own behaviour."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from edgerun_hw.simulate.simulator import Simulator
from tests.hw.commands import GEOMETRY, Make


@pytest.fixture
def overlay() -> Iterator[Make]:
    """Makes simulators and sees in the end that none of them broke a rule of AXI."""
    made: list[Simulator] = []

    def make(**options: object) -> Simulator:
        made.append(Simulator(GEOMETRY, **{"memory": None, **options}))  # type: ignore[arg-type]
        return made[-1]

    yield make
    for simulator in made:
        assert simulator.violations() == []
        simulator.close()


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(7)
