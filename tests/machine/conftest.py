"""Here the machine is measured."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def memory_speed() -> None:
    """In place of the one that says a speed: what measures it is tested as it is."""
