"""Fixtures of the tests that look at the overlay's own behaviour."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from edgerun_hw.simulate.simulator import Simulator
from tests.hw.support.commands import GEOMETRY, Make


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Gives tests time that may compile a simulator first, on however busy a machine."""
    for item in items:
        long = item.get_closest_marker("fpga") or item.get_closest_marker("pynq")
        if long and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(900))


@pytest.fixture
def overlay() -> Iterator[Make]:
    """Makes simulators and sees in the end that none of them broke a rule of AXI."""
    simulators: list[Simulator] = []

    def make(**options: object) -> Simulator:
        simulators.append(Simulator(GEOMETRY, **{"memory": None, **options}))  # type: ignore[arg-type]
        return simulators[-1]

    yield make
    for simulator in simulators:
        assert simulator.violations() == []
        simulator.close()


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(7)


@pytest.fixture(scope="session")
def first() -> dict[str, bytes]:
    """A package to deploy."""
    from tests.hw.deploy.harness import application

    return application(1)


@pytest.fixture(scope="session")
def second() -> dict[str, bytes]:
    """Another, of the same name."""
    from tests.hw.deploy.harness import application

    return application(2)
