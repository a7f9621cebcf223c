"""Packages that several tests deploy."""

import pytest

from tests.hw.deploy.harness import application


@pytest.fixture(scope="session")
def first() -> dict[str, bytes]:
    return application(1)


@pytest.fixture(scope="session")
def second() -> dict[str, bytes]:
    return application(2)
