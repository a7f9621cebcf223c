"""Fixtures that more than one folder of tests needs."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

ROOT = Path(__file__).resolve().parents[1]

# How fast a machine is, and what else it does, is nothing that a test may fail of.
settings.register_profile("edgerun", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("edgerun")


@pytest.fixture(autouse=True)
def _empty_stdin(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Commands read stdin whenever it is no terminal, and pytest's own refuses to be read."""
    with open(os.devnull) as nothing:
        monkeypatch.setattr("sys.stdin", nothing)
        yield


@pytest.fixture(scope="session")
def repo_root() -> Path:
    return ROOT


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Real models, tokenizers and texts; kept beside the checkout because they are not ours."""
    folder = ROOT.parent / "shared" / "data"
    if not folder.is_dir():
        pytest.skip(f"no test data at {folder}")
    return folder
