"""Compiled code is that of today's activation functions, ours and those of other packages."""

from __future__ import annotations

from pathlib import Path

import pytest

from edgerun.kernels.jit import registry


def test_our_functions_are_part_of_the_digest(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(registry, "FORMS", tmp_path)
    versions = set()
    for text in ("a", "b"):
        (tmp_path / "curve.py").write_text(text)
        versions.add(registry.code_version.__wrapped__())
    assert len({*versions, registry.code_version()}) == 3


def test_added_functions_are_part_of_what_applies_one(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    class Cache:
        def load(self, key: str) -> registry.Entry:
            asked.append(key)
            return registry.Entry(b"", ())

    monkeypatch.setattr(registry, "_cache", Cache)
    monkeypatch.setattr(registry, "_COMPILED", {})
    monkeypatch.setattr(registry, "_added_code", lambda: ("digest", frozenset()))
    registry.compiled("gate", activation="curve", lanes=8)
    registry.compiled("add", lanes=8)
    assert asked == ["gate-activation=curve-lanes=8-added=digest", "add-lanes=8"]
