"""What commands say when an argument is missing, and when there is nothing to work on."""

from __future__ import annotations

import pytest

from tests.cli.conftest import Run
from tests.cli.test_chat import talk


def test_a_missing_argument_is_asked_for_by_the_command_typed(run: Run) -> None:
    shown = talk(["/load", "/save", "one", "two", "/forget"], run).err
    assert "name a file, for example /load story.chat" in shown
    assert "name a file, for example /save story.chat" in shown
    assert "say how many messages to forget, 1 to 2, for example /forget 1" in shown


def test_what_has_nothing_to_work_on_says_so(run: Run) -> None:
    lines = talk(["/retry", "/forget", "/undo"], run).err.splitlines()
    assert lines == [
        "edgerun: there is no message to answer again: nothing was said yet",
        "edgerun: cannot forget any messages: nothing was said yet",
        "edgerun: there is nothing to take back: nothing was said yet",
        "edgerun: 3 of the lines failed, see above",
    ]


def test_help_tells_of_a_command_by_any_of_its_names(run: Run) -> None:
    assert "/set NAME default" in talk(["/help"], run).err
    lines = talk(["/help set", "/help /forget", "/? q", "/help sett"], run).err.splitlines()
    assert [line.split()[0].rstrip(",") for line in lines[:3]] == ["/set", "/forget", "/quit"]
    assert lines[3] == "edgerun: there is no command /sett: did you mean /set?"


def test_a_message_that_begins_with_a_slash_is_told_how_it_is_sent(run: Run) -> None:
    lines = talk(["/etc is a folder", "/etc/fstab", "/sett"], run).err.splitlines()
    goes = "; a message that begins with a slash goes into quotes, as in "
    begin = "edgerun: there is no command /"
    assert lines[0] == f'{begin}etc: did you mean /set?{goes}"""/etc is a folder"""'
    assert lines[1] == f'{begin}etc/fstab: see /help{goes}"""/etc/fstab"""'
    assert lines[2] == f"{begin}sett: did you mean /set?"


def test_undo_shows_a_message_as_it_was_written(run: Run) -> None:
    family = "👨\u200d👩\u200d👧"
    shown = talk([f'{family} isn\'t "home" \x1b[2J', "/undo"], run).err
    assert f'took back "{family} isn\'t "home" ␛[2J" and its reply' in shown


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("/undo 2", "/undo takes nothing behind it, and '2' is there"),
        ("/q now", "/q takes nothing behind it, and 'now' is there"),
        ("/set stop_ids 99999", "stop_ids holds 99999; the vocabulary"),
        ("/set logit_bias 99999=1", "logit_bias names id 99999; the vocabulary"),
        ("/set thinking_budget 4", "thinking_budget is for models that think"),
    ],
)
def test_what_can_never_be_done_is_refused_at_once_and_changes_nothing(
    line: str, message: str, run: Run
) -> None:
    result = talk(["hello", line, "/set stop_ids", "/show"], run)
    assert message in result.err
    assert "stop_ids              none" in result.err and "> hello" in result.err
    assert result.code == 2


def test_a_chat_does_not_begin_with_what_can_never_be_done(run: Run) -> None:
    result = talk(["hello"], run, "--thinking-budget", "4")
    assert (result.code, result.out) == (2, "")
    assert "thinking-budget is for models that think" in result.err
