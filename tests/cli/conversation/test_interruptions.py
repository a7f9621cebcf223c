"""Replies that end before their end: who stopped them, what is said of it, what is kept."""

from __future__ import annotations

import io
import itertools
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from edgerun.cli import main
from edgerun.cli.conversation import keyboard, reader
from edgerun.cli.conversation.state import DROP_OLDEST, Conversation
from edgerun.cli.conversation.store import ChatStore
from edgerun.cli.screen import reply
from edgerun.errors import BackendError, Full
from edgerun.llm.llm import LLM
from edgerun.state.paged import PagePool
from tests.cli.conftest import Run
from tests.cli.conversation.test_keeping import continued
from tests.support import fakes


def failing_after(pieces: int, error: BaseException) -> Callable[..., None]:
    """What shows some pieces of a reply, and then fails."""

    def show(stream: Any, **_: Any) -> None:
        with stream:
            for number, _piece in enumerate(stream, 1):
                if number == pieces:
                    raise error

    return show


def test_ctrl_c_in_a_reply_ends_the_chat_of_a_script_and_keeps_it(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(reply, "show_reply", failing_after(2, KeyboardInterrupt()))
        result = run("chat", "--continue", stdin=b"one\ntwo\n")
    assert (result.code, result.err.splitlines()[-1]) == (130, "edgerun: interrupted")
    assert continued(run) == ["> one"]


@pytest.mark.parametrize(("pieces", "is_terminal"), [(1, True), (1, False), (0, True)])
def test_the_notice_of_ctrl_c_begins_a_line_on_a_terminal(
    run: Run, monkeypatch: pytest.MonkeyPatch, pieces: int, is_terminal: bool
) -> None:
    def show(stream: Any, **_: Any) -> None:
        with stream:
            for _piece in itertools.islice(stream, pieces):
                pass
            monkeypatch.setattr("sys.stdout.isatty", lambda: is_terminal)
            raise KeyboardInterrupt

    monkeypatch.setattr(reply, "show_reply", show)
    result = run("run", "hi")
    assert (result.code, result.err) == (130, "edgerun: interrupted\n")
    assert result.out == ("\n" if pieces and is_terminal else "")


def test_what_was_said_is_kept_when_nobody_reads_it(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C in ``edgerun chat | tee file`` ends ``tee``, too."""
    with monkeypatch.context() as patch:
        patch.setattr(reply, "show_reply", failing_after(2, BrokenPipeError()))
        patch.setattr(main, "_drop_output", lambda: None)  # of pytest's output
        assert run("chat", "--continue", stdin=b"one\n").code == 141
    assert continued(run) == ["> one"]


def test_a_failure_of_the_machine_is_told_from_a_mistake_by_the_exit_code(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reply, "show_reply", failing_after(1, BackendError("the device is gone")))
    result = run("chat", stdin=b"one\n")
    assert (result.code, result.out) == (1, "")
    assert "the device is gone" in result.err
    assert "1 of the lines failed" in result.err


def leave_one_page(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets memory have room for a page of keys and values, and no second one."""
    take, pages = PagePool._take_page, iter(range(1))

    def take_last(state: PagePool) -> int:
        if next(pages, None) is None:
            raise Full("there are no pages")
        return take(state)

    monkeypatch.setattr(PagePool, "_take_page", take_last)


@pytest.mark.parametrize("command", ["run", "chat"])
def test_a_reply_that_memory_cuts_is_told_of(
    run: Run, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    leave_one_page(monkeypatch)
    result = run(command, stdin=b"hi\n")
    assert result.code == 0
    assert "the reply ends here because the memory for keys and values is full" in result.err


def test_a_retry_that_dropped_others_and_got_no_token_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with LLM(fakes.fake_model(context=128)) as llm:
        chat = Conversation(llm, {"max_tokens": 20}, store=ChatStore(tmp_path))
        for message in ("one", "two"):
            chat.answer(message)
        before = list(chat.session.messages)
        chat.when_full, chat.settings = DROP_OLDEST, {"max_tokens": 20}
        monkeypatch.setattr(chat, "_leaves_room", lambda stream: not chat.exchanges())
        monkeypatch.setattr(reply, "show_reply", lambda stream, **_: stream.close())
        chat.retry()
        assert chat.session.messages == before
        assert ChatStore(tmp_path).last_chat(llm.model.digest).exists()


class Stream(io.StringIO):
    def __init__(self, is_terminal: bool) -> None:
        super().__init__()
        self._is_terminal = is_terminal

    def isatty(self) -> bool:
        return self._is_terminal


@pytest.mark.parametrize("shown", [True, False])
def test_there_is_an_editor_only_where_it_can_be_seen(
    monkeypatch: pytest.MonkeyPatch, shown: bool
) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys, "stdin", Stream(is_terminal=True))
    monkeypatch.setattr(sys, "stderr", Stream(is_terminal=shown))
    assert keyboard.has_editor() is shown


def test_how_full_a_chat_is_is_asked_once_a_message(tmp_path: Path) -> None:
    from prompt_toolkit.application import create_app_session
    from prompt_toolkit.input import create_pipe_input

    asked = []

    def fill() -> str:
        asked.append(0)
        return "1/2"

    with create_pipe_input() as keys, create_app_session(input=keys):
        read = reader._editor(fill, ChatStore(tmp_path))
        for count, message in enumerate(("a message of some letters", "another"), 1):
            keys.send_text(f"{message}\r")
            assert read() == message
            assert len(asked) == count
