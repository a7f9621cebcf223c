"""What a terminal says while a long prompt is read."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest

from edgerun.cli.screen import reading
from edgerun.cli.screen.progress import CLEAR
from edgerun.cli.screen.reading import reading_line, reading_of
from edgerun.cli.screen.reply import show_reply
from edgerun.engine.stats import Stats
from edgerun.llm.replies.completion import Part
from tests.cli.screen.test_reply import Terminal
from tests.llm.chats.test_thinking import CHAT, that_says
from tests.model.chat.tools.replies import MESSAGES

BEGAN = Stats(started=100.0)
WAITS = Stats(prompt_tokens=3600, started=100.0)
GOES_ON = Stats(prompt_tokens=3600, reused_tokens=600, read_tokens=1600, started=100.0)


def tellers() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "prompt progress"]


class Screen:
    """A terminal for stdout and stderr, on which nobody has patience."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Made in a test: between fixtures and tests pytest puts streams of its own back."""
        monkeypatch.setattr(reading, "PATIENCE_S", 0.01)
        monkeypatch.setattr(reading, "EVERY_S", 0.01)
        self._stream = Terminal()
        monkeypatch.setattr("sys.stdout", self._stream)
        monkeypatch.setattr("sys.stderr", self._stream)
        monkeypatch.setenv("TERM", "xterm")
        monkeypatch.setenv("COLUMNS", "80")

    @property
    def text(self) -> str:
        return self._stream.getvalue()

    def wait_for(self, text: str) -> None:
        while text not in self.text:
            time.sleep(0.01)


@pytest.mark.parametrize(
    ("stats", "text"),
    [
        (BEGAN, "reading the prompt: 10 s"),
        (WAITS, "reading the prompt of 3,600 tokens: 10 s"),
        (GOES_ON, "reading the prompt: 1,600 of 3,600 tokens, about 20 s to go"),
    ],
)
def test_it_says_how_much_was_read_and_how_long_the_rest_takes(stats: Stats, text: str) -> None:
    assert reading_of(stats, 110.0) == text


def test_what_was_reused_is_not_read() -> None:
    reused = Stats(prompt_tokens=900, reused_tokens=800, read_tokens=800, started=100.0)
    assert reading_of(reused, 102.0) == "reading the prompt of 100 tokens: 2 s"


def test_a_line_that_is_shown_is_gone_before_the_reply(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = Screen(monkeypatch)
    with reading_line(Stats(prompt_tokens=7)) as end:
        screen.wait_for("reading the prompt of 7 tokens: 0 s")
        end()
        shown = screen.text
        assert shown.endswith(CLEAR)
        time.sleep(0.05)
        end()
    assert screen.text == shown
    assert not tellers()


def test_prompts_that_are_soon_read_are_not_spoken_of(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    screen = Screen(monkeypatch)
    monkeypatch.setattr(reading, "PATIENCE_S", 100.0)
    with reading_line(Stats(prompt_tokens=7)) as end:
        end()
    assert screen.text == ""


def test_a_reply_has_the_screen_to_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """However slow its prompt was: nothing is written or cleared once it has begun."""
    screen = Screen(monkeypatch)
    with that_says("Hi!", monkeypatch, CHAT) as llm:
        stream = llm.stream_chat(MESSAGES)
        parts = stream.parts

        def slow_parts() -> Iterator[Part]:
            screen.wait_for("reading")
            for part in parts():
                yield part
                time.sleep(0.05)

        monkeypatch.setattr(stream, "parts", slow_parts)
        show_reply(stream)
    before, reply = screen.text.rsplit(CLEAR, 1)
    assert "reading the prompt" in before
    assert reply == "Hi!"


def test_an_error_ends_the_line(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = Screen(monkeypatch)
    with pytest.raises(KeyboardInterrupt), reading_line(Stats(prompt_tokens=7)):
        screen.wait_for("reading")
        raise KeyboardInterrupt
    assert screen.text.endswith(CLEAR)
    assert not tellers()


def test_a_pipe_is_told_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    with reading_line(Stats(prompt_tokens=7)) as end:
        assert not tellers()
        end()
    assert capsys.readouterr() == ("", "")
