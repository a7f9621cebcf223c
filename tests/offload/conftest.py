"""What tests of shared layers have in common."""

from __future__ import annotations

import re
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest


@pytest.fixture
def announced(monkeypatch: pytest.MonkeyPatch) -> None:
    """The devices, by the entry points of the project's own file, whatever is installed."""
    text = (Path(__file__).parents[2] / "pyproject.toml").read_text()
    points = [
        EntryPoint(
            name, re.findall(rf'^{name} = "(.*?)"', text, re.MULTILINE)[0], "edgerun.backends"
        )
        for name in ("standin", "cuda")
    ]
    monkeypatch.setattr("edgerun.backends.registry._added_backends", lambda: points)
