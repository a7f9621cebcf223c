"""What commands say when an argument is missing, and when there is nothing to work on."""

from __future__ import annotations

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
    ]


def test_help_tells_of_a_command_by_any_of_its_names(run: Run) -> None:
    assert "/set NAME default" in talk(["/help"], run).err
    lines = talk(["/help set", "/help /forget", "/? q", "/help sett"], run).err.splitlines()
    assert [line.split()[0].rstrip(",") for line in lines[:3]] == ["/set", "/forget", "/quit"]
    assert lines[3:] == ["edgerun: there is no command /sett: did you mean /set?"]


def test_undo_shows_a_message_as_it_was_written(run: Run) -> None:
    family = "👨\u200d👩\u200d👧"
    shown = talk([f'{family} isn\'t "home" \x1b[2J', "/undo"], run).err
    assert f'took back "{family} isn\'t "home" ␛[2J" and its reply' in shown
