"""Lines for people on stderr."""

from __future__ import annotations

import logging

import pytest

from edgerun.cli.screen.messages import _Saying


def test_warnings_are_said_and_what_a_terminal_would_obey_is_shown(
    capsys: pytest.CaptureFixture[str],
) -> None:
    logger = logging.Logger("a part")
    logger.addHandler(_Saying())
    logger.warning("%s is no \x1b[31mfolder", "a\x07b")
    assert capsys.readouterr().err == "edgerun: a␇b is no ␛[31mfolder\n"
