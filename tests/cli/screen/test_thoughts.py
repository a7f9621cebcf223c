"""Thoughts are dim on a terminal, counted if they are to be hidden, and in no pipe."""

from __future__ import annotations

import io
import sys

import pytest

from edgerun.cli.screen.reply import show_reply
from tests.cli.screen.test_reply import Terminal
from tests.llm.chats.test_thinking import CHAT, HARMONY, REPLY, that_says
from tests.model.chat.tools.replies import MESSAGES

DIM, PLAIN = "\x1b[2m", "\x1b[22m"


def shown(
    monkeypatch: pytest.MonkeyPatch,
    reply: str = REPLY,
    *,
    term: str = "xterm",
    out: type[io.StringIO] = Terminal,
    hides_thinking: bool = False,
    template: str = CHAT,
) -> tuple[str, str]:
    """What a reply leaves on stdout and stderr."""
    stdout, stderr = out(), Terminal()
    monkeypatch.setenv("TERM", term)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr(sys, "stdout", stdout)
    monkeypatch.setattr(sys, "stderr", stderr)
    with that_says(reply, monkeypatch, template) as llm:
        show_reply(llm.stream_chat(MESSAGES), hides_thinking=hides_thinking)
    return stdout.getvalue(), stderr.getvalue()


def test_a_terminal_shows_them_dim(monkeypatch: pytest.MonkeyPatch) -> None:
    assert shown(monkeypatch) == (f"{DIM}Is it <b>?{PLAIN}\n\nHi!\n", "")


def test_where_nothing_can_be_dim_a_word_says_what_they_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert shown(monkeypatch, term="dumb") == ("[thinking] Is it <b>?\n\nHi!\n", "")


def test_what_follows_a_thought_that_is_cut_off_is_not_dim(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert shown(monkeypatch, "<think>\nSo") == (f"{DIM}So{PLAIN}", "")


def test_hidden_ones_are_counted_until_the_answer_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    out, line = shown(monkeypatch, hides_thinking=True)
    assert out == "Hi!\n"
    assert "thinking: 2 tokens" not in out and "thinking: 3 tokens" in line
    assert line.endswith("\r\x1b[2K")
    assert shown(monkeypatch, "Hi!", hides_thinking=True) == ("Hi!", "")


def test_a_pipe_gets_none(monkeypatch: pytest.MonkeyPatch) -> None:
    assert shown(monkeypatch, out=io.StringIO) == ("Hi!\n", "")


BETWEEN = "<|channel|>commentary<|message|>I look.<|end|><|start|>assistant"
BETWEEN += "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant"
BETWEEN += "<|channel|>final<|message|>Hi."


def test_thoughts_between_messages_of_an_answer_leave_it_whole(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert shown(monkeypatch, BETWEEN, template=HARMONY) == (
        f"I look.\n\n{DIM}Hm.{PLAIN}\n\nHi.",
        "",
    )
    assert shown(monkeypatch, BETWEEN, template=HARMONY, hides_thinking=True) == (
        "I look.\n\nHi.",
        "",
    )
