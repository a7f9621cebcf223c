"""Names that somebody may have meant."""

from __future__ import annotations

import pytest

from edgerun.cli.screen.nearest import nearest

NAMES = ("run", "chat", "--model", "--dry-base", "--prefill", "--repetition-penalty")


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("rnu", "run"),
        ("--modle", "--model"),
        ("--mod", "--model"),
        ("--repetiton-penlaty", "--repetition-penalty"),
        ("--verbose", None),
        ("--file", None),
        ("-x", None),
        ("", None),
    ],
)
def test_only_slips_and_beginnings_are_recognised(typed: str, meant: str | None) -> None:
    assert nearest(typed, NAMES) == meant


def test_nothing_is_near_to_nothing() -> None:
    assert nearest("run", []) is None
