"""What may be set in a chat, and what may not."""

from __future__ import annotations

from tests.cli.conftest import Run
from tests.cli.test_chat import talk


def test_what_is_told_beside_a_text_is_no_setting(run: Run) -> None:
    """A chat has no place for it."""
    shown = talk(["/set logprobs 3", "/set"], run).err
    assert "there is no setting 'logprobs'" in shown
    assert shown.count("logprobs") == 1
    refused = run("chat", "--logprobs", "3", stdin=b"")
    assert (refused.code, refused.out) == (2, "")
    assert "there is no option --logprobs" in refused.err
