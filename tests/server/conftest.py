from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.server.served import Served, served


@pytest.fixture(scope="package")
def client() -> Iterator[Served]:
    """A server of the fake model, which many tests share."""
    with served() as client:
        yield client
