"""Replies on a terminal: wrapped between words, nothing of them obeyed; in a pipe as they are."""

from __future__ import annotations

import io
import re
import sys
import textwrap

import pytest
from hypothesis import given
from hypothesis import strategies as st
from wcwidth import wcswidth

from edgerun.cli.screen import reply
from edgerun.cli.screen.reply import WrappedLines, reply_writer
from edgerun.cli.screen.tables import print_pairs, print_rows
from edgerun.cli.screen.visible import folded, shortened, visible

STEPS = re.compile(r"\x1b\[(\d+)D|\x1b\[K|(.)", re.DOTALL)
CONTROLS = [chr(code) for code in (*range(32), 127, *range(128, 160)) if chr(code) not in "\n\t"]


def screen(sent: str) -> list[str]:
    """What a terminal shows that knows letters of one column, new lines and two escapes."""
    lines: list[list[str]] = [[]]
    column = 0
    for match in STEPS.finditer(sent):
        back, character = match.groups()
        if back:
            column -= int(back)
            assert column >= 0
        elif character is None:
            del lines[-1][column:]
        elif character == "\n":
            lines.append([])
            column = 0
        else:
            assert character.isprintable()
            lines[-1][column:] = [character]
            column += 1
    return ["".join(line) for line in lines]


def wrapped(pieces: list[str], width: int) -> str:
    sent: list[str] = []
    lines = WrappedLines(sent.append, width)
    for piece in pieces:
        lines.write(piece)
    return "".join(sent)


WORDS = st.lists(st.text("abcdefg.,", min_size=1, max_size=12), min_size=1, max_size=40)


@given(WORDS, st.integers(12, 40), st.integers(1, 9))
def test_lines_break_where_textwrap_breaks_them(words: list[str], width: int, step: int) -> None:
    text = " ".join(words)
    pieces = [text[start : start + step] for start in range(0, len(text), step)]
    shown = [line.rstrip() for line in screen(wrapped(pieces, width))]
    assert shown == textwrap.wrap(text, width, break_on_hyphens=False)


@given(st.text("ab \n\t", max_size=200), st.integers(20, 40))
def test_any_text_stays_within_the_width_and_loses_no_letter(text: str, width: int) -> None:
    lines = screen(wrapped([text], width))
    assert max(map(len, lines)) <= width
    assert "".join("".join(lines).split()) == "".join(text.split())


def test_words_longer_than_a_line_break_anywhere() -> None:
    assert screen(wrapped(["ab", "x" * 50], 20)) == ["ab" + "x" * 18, "x" * 20, "x" * 12]
    assert screen(wrapped(["a ", "x" * 30], 20)) == ["a ", "x" * 20, "x" * 10]


@pytest.mark.parametrize(
    "text", ["狐狸和葡萄" * 9, "été " * 20, "e\u0301te\u0301 " * 20, "❤️ fox " * 9]
)
def test_wide_and_combining_characters_count_as_they_show(text: str) -> None:
    sent = wrapped(list(text), 21)
    erased = re.sub(r"[^ \n]*\x1b\[\d+D\x1b\[K", "", sent)
    assert max(wcswidth(line) for line in erased.split("\n")) <= 22  # a heart may be two wide
    assert "".join(erased.split()) == "".join(text.split())


def test_control_characters_are_shown_and_not_obeyed() -> None:
    hostile = "\x1b]52;c;ZXZpbA==\x07\x1b[2J\rgone\x9b1;1H\x7f\x08"
    assert visible(hostile) == "␛]52;c;ZXZpbA==␇␛[2J␍gone<9B>1;1H␡␈"
    assert not set(visible("".join(CONTROLS))).intersection(CONTROLS)
    assert visible("a\n\tb é 狐 ❤️") == "a\n\tb é 狐 ❤️"
    assert not set(wrapped([hostile], 40)).intersection(set(CONTROLS) - {"\x1b"})


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("term", "columns", "wraps"), [("xterm", 30, 1), ("dumb", 30, 0), ("xterm", 9, 0)]
)
def test_a_terminal_that_cannot_erase_gets_lines_as_they_are(
    monkeypatch: pytest.MonkeyPatch, term: str, columns: int, wraps: int
) -> None:
    monkeypatch.setattr(sys, "stdout", Terminal())
    monkeypatch.setenv("TERM", term)
    monkeypatch.setenv("COLUMNS", str(columns))
    reply_writer()("one word and another and \x1b one more")
    assert isinstance(sys.stdout, Terminal)
    assert sys.stdout.getvalue().count("\n") == wraps
    assert "␛" in sys.stdout.getvalue()


def test_a_pipe_gets_the_reply_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", io.StringIO())
    reply = "a\x1b[1m" + "word " * 100
    reply_writer()(reply)
    assert isinstance(sys.stdout, io.StringIO)
    assert sys.stdout.getvalue() == reply


def test_no_word_of_a_message_is_broken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    text = f"look into {'/a-folder' * 6} and, well-known, into one-and-the-same-place-again now"
    lines = folded(text, Terminal()).split("\n")
    assert len(lines) > 3
    assert [word for line in lines for word in line.split()] == text.split()
    assert all(len(line) < 40 or len(line.split()) == 1 for line in lines)
    assert all(line.startswith("  ") for line in lines[1:])
    assert folded(text, io.StringIO()) == text
    assert folded("short", Terminal()) == "short"


def test_an_indent_leaves_lines_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "20")
    lines = folded("  /set  Shows or sets sampling: /set NAME", Terminal(), " " * 25).split("\n")
    assert all(len(line) < 20 for line in lines)
    assert all(line[:7] == " " * 6 + line.strip()[0] for line in lines[1:])
    assert len(lines) == 4


def test_no_word_beside_wide_characters_is_broken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    text = "took back 狐狸 and 葡萄 beside 狐狸 and 葡萄 and their replies"
    lines = folded(text, Terminal()).split("\n")
    assert [word for line in lines for word in line.split()] == text.split()
    assert max(map(wcswidth, lines)) < 40


def test_a_text_is_shortened_at_the_end_of_a_word() -> None:
    assert shortened("one two\n three", 13) == "one two three"
    assert shortened("one two three", 12) == shortened("one two three", 7 + 1) == "one two…"
    assert shortened("x" * 50, 40) == "x" * 40 + "…"
    assert shortened("狐狸和葡萄", 7) == "狐狸和…"


def test_tables_show_foreign_names(capsys: pytest.CaptureFixture[str]) -> None:
    print_pairs("files", {"a\x1b[31m": ["b\x07"]})
    print_rows([{"tensor": "c\x1b[2J"}])
    assert capsys.readouterr().out == "files\n  a␛[31m  b␇\ntensor\nc␛[2J\n"


@pytest.mark.parametrize("size", [20, 40])
def test_a_reply_is_wrapped_by_the_width_that_the_window_has_now(
    size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setattr(sys, "stdout", Terminal())
    monkeypatch.setattr(reply, "terminal_erases", lambda: True)
    monkeypatch.setattr(reply, "columns", lambda stream: size)
    write = reply_writer()
    for word in ("Once upon a time, ", "there ", "was ", "a ", "dog.\n"):
        write(word)
    monkeypatch.setattr(reply, "columns", lambda stream: 24)
    write("It lived in a small house by the sea.")
    shown = screen(sys.stdout.getvalue())  # type: ignore[attr-defined]
    assert all(not line or len(line) < max(size, 24) for line in shown)
    text = "It lived in a small house by the sea."
    assert [line.rstrip() for line in shown][-2:] == textwrap.wrap(text, 23)
    assert " ".join("\n".join(shown).split()).startswith("Once upon a time, there was a dog.")
