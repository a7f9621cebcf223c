"""What ``--continue`` goes on with is the chat as it was left, whatever changed it last."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.conftest import Run
from tests.cli.test_chat import talk


def continued(run: Run) -> list[str]:
    """The messages that the next chat begins with, as it shows them."""
    shown = talk(["/show"], run, "--continue").err
    return [line for line in shown.splitlines() if line.startswith(("> ", "[system] "))]


@pytest.mark.parametrize(
    ("command", "left"),
    [
        ("/clear", []),
        ("/undo", ["> one"]),
        ("/forget 1", ["> two"]),
        ("/system be kind", ["[system] be kind", "> one", "> two"]),
    ],
)
def test_commands_that_change_a_chat_are_kept(run: Run, command: str, left: list[str]) -> None:
    talk(["one", "two"], run, "--continue")
    talk([command], run, "--continue")
    assert continued(run) == left


def test_a_chat_that_was_loaded_is_the_last_one(run: Run, tmp_path: Path) -> None:
    talk(["one", f"/save {tmp_path / 'saved'}", "/clear", "two"], run, "--continue")
    talk([f"/load {tmp_path / 'saved'}"], run, "--continue")
    assert continued(run) == ["> one"]


def test_a_system_message_stays_when_the_rest_is_cleared(run: Run) -> None:
    talk(["/system be kind", "one"], run, "--continue")
    talk(["/clear"], run, "--continue")
    assert continued(run) == ["[system] be kind"]
    talk(["/system -"], run, "--continue")
    assert continued(run) == []


def test_a_chat_in_which_nothing_was_said_replaces_no_other(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    talk(["one"], run, "--continue")
    new = iter(["/system be kind", "/clear"])

    def typed(*_: object) -> str:
        try:
            return next(new)
        except StopIteration:
            raise EOFError from None

    with monkeypatch.context() as patch:
        patch.setattr("edgerun.cli.conversation.reader._editor", lambda fill, store: typed)
        patch.setenv("TERM", "xterm")
        assert run("chat", stdin=None).code == 0  # at a terminal, where a new chat is kept
    assert continued(run) == ["> one"]
