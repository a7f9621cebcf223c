"""The text of a reply as it comes, read by generators that wait where they need more of it.

A reader of a form of calls is a generator: it yields where the text ends for now, and goes on when
there is more. Every character is looked at once or twice, however small the pieces are, and no
more is kept than what a call has so far.
"""

from __future__ import annotations

import re
from collections.abc import Generator
from typing import Any, TypeAlias, TypeVar

from edgerun.model.chat.tools.markers import Markers
from edgerun.model.chat.tools.values import MAX_DEPTH, UnreadableError, read_json

T = TypeVar("T")
Reading: TypeAlias = Generator[None, None, T]  # yields where it waits for more text

SPACES = re.compile(r"[ \t\r\n]*")
NAME = re.compile(r"[\w.:/-]*", re.ASCII)
MAX_NAME = 256
JSON_QUOTES = ('"',)
PYTHON_QUOTES = ('"', "'")


class Mark:
    """A place in the text, from which on it is kept."""

    def __init__(self, start: int) -> None:
        """Marks a place of what has come."""
        self.start = start
        self.parts: list[str] = []


class Incoming:
    """A text that grows at its end and is read from its beginning.

    Literals are looked for as they are written in a template: those that are control tokens of the
    model match the tokens, and no letters.

    Attributes:
        markers: what stands for control tokens.
        text: what has come and may still be needed.
        at: how far it is read.
        has_ended: whether nothing more comes.
    """

    def __init__(self, markers: Markers) -> None:
        """Begins an empty text."""
        self.markers = markers
        self.text, self.at, self.has_ended = "", 0, False
        self._marks: list[Mark] = []
        self._codes: dict[str, str] = {}

    def feed(self, text: str) -> None:
        """Appends text."""
        for mark in self._marks:
            mark.parts.append(self.text[mark.start : self.at])
            mark.start = 0
        self.text, self.at = self.text[self.at :] + text, 0

    def end(self) -> None:
        """Says that nothing more comes."""
        self.has_ended = True

    def mark(self) -> Mark:
        """Keeps what is read from here on; to be given to ``since``."""
        mark = Mark(self.at)
        self._marks.append(mark)
        return mark

    def since(self, mark: Mark) -> str:
        """What was read since a place was marked, which is forgotten."""
        self._marks.remove(mark)
        return "".join(mark.parts) + self.text[mark.start : self.at]

    def coded(self, literal: str) -> str:
        """A text of a template as it stands here."""
        if literal not in self._codes:
            self._codes[literal] = self.markers.coded(literal)
        return self._codes[literal]

    def more(self) -> Reading[None]:
        """Waits for more text.

        Raises:
            UnreadableError: there is none.
        """
        if self.has_ended:
            raise UnreadableError("the reply ends in a call")
        yield

    def spaces(self) -> Reading[str]:
        """Reads spaces and line breaks, maybe none."""
        mark = self.mark()
        try:
            while True:
                match = SPACES.match(self.text, self.at)
                assert match is not None
                self.at = match.end()
                if self.at < len(self.text) or self.has_ended:
                    break
                yield
        finally:
            read = self.since(mark)
        return read

    def comes(self, literal: str) -> Reading[bool]:
        """Whether this is what comes next, which then is read, behind spaces."""
        yield from self.spaces()
        return (yield from self.follows(literal))

    def comes_any(self, *literals: str) -> Reading[str]:
        """Which of these comes next, which then is read, behind spaces; empty if none does."""
        yield from self.spaces()
        for literal in literals:
            if (yield from self.follows(literal)):
                return literal
        return ""

    def follows(self, literal: str, *, read: bool = True) -> Reading[bool]:
        """Whether this is the very next, which then is read unless it is not to be."""
        literal = self.coded(literal)
        while True:
            start = self.text[self.at : self.at + len(literal)]
            if start == literal:
                self.at += len(literal) if read else 0
                return True
            if self.has_ended or not literal.startswith(start):
                return False
            yield

    def ahead(self, count: int) -> Reading[str]:
        """The next so many characters, or fewer where the reply ends; they are not read."""
        while len(self.text) - self.at < count and not self.has_ended:
            yield
        return self.text[self.at : self.at + count]

    def expect(self, literal: str) -> Reading[None]:
        """Reads this, behind spaces.

        Raises:
            UnreadableError: something else comes.
        """
        if not (yield from self.comes(literal)):
            raise UnreadableError(f"no {literal}")

    def close(self, literal: str) -> Reading[None]:
        """Reads what ends calls, or nothing where the reply ends.

        Raises:
            UnreadableError: something else comes.
        """
        if not (yield from self.comes(literal)) and not self.is_over:
            raise UnreadableError(f"no {literal}")

    @property
    def is_over(self) -> bool:
        """Whether all was read, and nothing comes."""
        return self.has_ended and self.at == len(self.text)

    def until(self, literal: str) -> Reading[str]:
        """Reads up to this, which is read too, and returns what stands before it.

        Raises:
            UnreadableError: the reply ends before.
        """
        literal = self.coded(literal)
        parts: list[str] = []
        while True:
            place = self.text.find(literal, self.at)
            end = place if place >= 0 else max(self.at, len(self.text) - len(literal) + 1)
            parts.append(self.text[self.at : end])
            self.at = end
            if place >= 0:
                self.at += len(literal)
                return self.markers.spelled("".join(parts))
            yield from self.more()

    def value(self, closing: str, *followed_by: str) -> Reading[str]:
        """Reads a value without quotes, up to what closes it, which is read too.

        A value may hold what closes values: that counts only where one of the texts follows which
        can follow a value.

        Raises:
            UnreadableError: the reply ends before.
        """
        parts: list[str] = []
        while True:
            parts.append((yield from self.until(closing)))
            spaces = yield from self.spaces()
            for literal in followed_by:
                if (yield from self.follows(literal, read=False)):
                    return "".join(parts)
            parts += (closing, spaces)

    def name(self) -> Reading[str]:
        """Reads the name of a function or an argument, behind spaces.

        Raises:
            UnreadableError: there is none, or one that is too long.
        """
        yield from self.spaces()
        while True:
            match = NAME.match(self.text, self.at)
            assert match is not None
            if match.end() - self.at > MAX_NAME:  # however much of it came at once
                raise UnreadableError("no name")
            if match.end() < len(self.text) or self.has_ended:
                break
            yield
        self.at = match.end()
        if not match[0]:
            raise UnreadableError("no name")
        return match[0]

    def json(self) -> Reading[Any]:
        """Reads an object or a list of JSON, behind spaces.

        Raises:
            UnreadableError: there is none.
        """
        text = yield from self.brackets(JSON_QUOTES, escapes=True)
        return read_json(self.markers.spelled(text))

    def object(self) -> Reading[dict[str, Any]]:
        """Reads an object of JSON, behind spaces.

        Raises:
            UnreadableError: there is none.
        """
        value = yield from self.json()
        if not isinstance(value, dict):
            raise UnreadableError("no object")
        return value

    def brackets(self, quotes: tuple[str, ...], *, escapes: bool) -> Reading[str]:
        """Reads from a bracket to the one that closes it, behind spaces; markers stay coded.

        Args:
            quotes: what begins and ends strings, in which brackets do not count.
            escapes: whether a backslash in a string takes its meaning from the next character.

        Raises:
            UnreadableError: no bracket comes, none closes it, or brackets are nested too deeply.
        """
        yield from self.spaces()
        coded = [self.coded(quote) for quote in quotes]
        outside = re.compile("|".join([*map(re.escape, coded), r"[\[({]", r"[\])}]"]))
        inside = {q: re.compile(re.escape(q) + (r"|\\" if escapes else "")) for q in coded}
        if self.at < len(self.text) and self.text[self.at] not in "[({":
            raise UnreadableError("no bracket")
        mark = self.mark()
        try:
            depth, quote = 0, ""
            while True:
                sign = yield from self._find(inside[quote] if quote else outside, coded)
                if sign == "\\":
                    yield from self._skip()
                elif quote or sign in inside:
                    quote = "" if quote else sign
                else:
                    depth += 1 if sign in "[({" else -1
                    if depth > MAX_DEPTH:
                        raise UnreadableError("too many levels")
                    if depth == 0:
                        break
        finally:
            read = self.since(mark)
        return read

    def _find(self, pattern: re.Pattern[str], literals: list[str]) -> Reading[str]:
        """Reads up to a match of a pattern, none of which is longer than the literals."""
        longest = max(map(len, literals))
        while True:
            match = pattern.search(self.text, self.at)
            if match:
                self.at = match.end()
                return match[0]
            self.at = max(self.at, len(self.text) - longest + 1)
            yield from self.more()

    def _skip(self) -> Reading[None]:
        while self.at == len(self.text):
            yield from self.more()
        self.at += 1
