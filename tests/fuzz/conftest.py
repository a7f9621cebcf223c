"""Servers that all tests of this folder share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.fuzz.client import Servers


@pytest.fixture(scope="session")
def servers() -> Iterator[Servers]:
    with Servers() as running:
        yield running
