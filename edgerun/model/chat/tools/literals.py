"""Values as Python writes them, and calls as expressions: ``f(x="a", n=[1, None])``."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from edgerun.model.chat.tools.values import MAX_DEPTH, UnreadableError, read_json, write_json

SPACES = re.compile(r"\s*")
STRING = re.compile(
    r'"(?P<double>[^"\\]*(?:\\.[^"\\]*)*)"' r"|'(?P<single>[^'\\]*(?:\\.[^'\\]*)*)'", re.DOTALL
)
NUMBER = re.compile(r"-?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?(?![\w.])")
WORD = re.compile(r"[\w.-]+")
WORDS = {"true": True, "True": True, "false": False, "False": False}
WORDS_OF_NOTHING = ("null", "None", "none")
ESCAPE = re.compile(
    r"\\(?:x(?P<x>[0-9a-fA-F]{2})|u(?P<u>[0-9a-fA-F]{4})|U(?P<U>[0-9a-fA-F]{8})|(?P<other>.))",
    re.DOTALL,
)
ESCAPED = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", "a": "\a", "v": "\v", "0": "\0"}
ESCAPED |= {"\\": "\\", "'": "'", '"': '"', "/": "/", "\n": ""}


class Literals:
    """Reads values one after the other, with no more levels than JSON may have."""

    def __init__(
        self,
        text: str,
        string: re.Pattern[str] = STRING,
        unquote: Callable[[re.Match[str]], str] | None = None,
    ) -> None:
        """Takes a text.

        Args:
            text: one or more values.
            string: what a text in quotes looks like.
            unquote: what it stands for; None for Python's rules.
        """
        self._text, self._at = text, 0
        self._string, self._unquote = string, unquote or unquoted

    @property
    def is_at_end(self) -> bool:
        """Whether nothing but spaces follows."""
        self._match(SPACES)
        return self._at == len(self._text)

    def comes(self, character: str) -> bool:
        """Whether this character is the next, which then is read."""
        self._match(SPACES)
        if not self._text.startswith(character, self._at):
            return False
        self._at += len(character)
        return True

    def expect(self, character: str) -> None:
        """Reads a character.

        Raises:
            UnreadableError: another one comes.
        """
        if not self.comes(character):
            raise UnreadableError(f"no {character}")

    def name(self) -> str:
        """Reads a name.

        Raises:
            UnreadableError: there is none.
        """
        self._match(SPACES)
        match = self._match(WORD)
        if match is None:
            raise UnreadableError("no name")
        return match[0]

    def value(self, depth: int = 0) -> Any:
        """Reads a value.

        Raises:
            UnreadableError: there is none, or one with too many levels.
        """
        if depth > MAX_DEPTH:
            raise UnreadableError("too many levels")
        self._match(SPACES)
        if match := self._match(self._string):
            return self._unquote(match)
        if match := self._match(NUMBER):
            return read_json(match[0])
        for opening, closing in ("[]", "()"):
            if self.comes(opening):
                return self._list(closing, depth)
        return self.mapping(depth) if self.comes("{") else self._word()

    def mapping(self, depth: int = 0, separator: str = ":", closing: str = "}") -> dict[str, Any]:
        """Reads what lies between brackets of which the first was read: names and values."""
        values: dict[str, Any] = {}
        while not self.comes(closing):
            if values:
                self.expect(",")
                if self.comes(closing):
                    break
            match = self._match_string()
            name = self._unquote(match) if match else self.name()
            self.expect(separator)
            values[name] = self.value(depth + 1)
        return values

    def _list(self, closing: str, depth: int) -> list[Any]:
        values: list[Any] = []
        while not self.comes(closing):
            if values:
                self.expect(",")
                if self.comes(closing):
                    break
            values.append(self.value(depth + 1))
        return values

    def _word(self) -> Any:
        word = self.name()
        if word not in WORDS and word not in WORDS_OF_NOTHING:
            raise UnreadableError(f"{word} is no value")
        return WORDS.get(word)

    def _match_string(self) -> re.Match[str] | None:
        self._match(SPACES)
        return self._match(self._string)

    def _match(self, pattern: re.Pattern[str]) -> re.Match[str] | None:
        match = pattern.match(self._text, self._at)
        if match:
            self._at = match.end()
        return match


def read_literal(text: str) -> Any:
    """Reads one value.

    Raises:
        UnreadableError: it is none, or more than that.
    """
    literals = Literals(text)
    value = literals.value()
    if not literals.is_at_end:
        raise UnreadableError("more than a value")
    return value


def read_expressions(text: str) -> list[tuple[str, dict[str, Any]]]:
    """Reads ``f(x=1), g()``: names with their arguments; commas may be missing.

    Raises:
        UnreadableError: it is something else.
    """
    literals = Literals(text)
    calls: list[tuple[str, dict[str, Any]]] = []
    while not literals.is_at_end:
        if calls:
            literals.comes(",")
        name = literals.name()
        literals.expect("(")
        calls.append((name, literals.mapping(0, "=", ")")))
    return calls


def unquoted(match: re.Match[str]) -> str:
    """The text that a string of Python's, or of JSON's, stands for."""
    inner = match["double"] if match["double"] is not None else match["single"]
    text = ESCAPE.sub(_character, inner) if "\\" in inner else str(inner)
    try:  # two escapes may be the halves of a character
        return text.encode("utf-16", "surrogatepass").decode("utf-16")
    except UnicodeDecodeError as error:
        raise UnreadableError("half of a character") from error


def _character(match: re.Match[str]) -> str:
    if match["other"]:
        return ESCAPED.get(match["other"], match[0])
    code = int(match["x"] or match["u"] or match["U"], 16)
    if code > 0x10FFFF:
        raise UnreadableError(f"{match[0]} is no character")
    return chr(code)


def write_expression(name: str, arguments: Mapping[str, Any]) -> str:
    """Writes ``f(x=1)``, as Python does."""
    listed = (
        f"{key if WORD.fullmatch(key) else write_json(key)}={_written(value)}"
        for key, value in arguments.items()
    )
    return f"{name}({', '.join(listed)})"


def _written(value: Any) -> str:
    if isinstance(value, bool) or value is None:
        return str(value)
    if isinstance(value, list):
        return f"[{', '.join(map(_written, value))}]"
    if isinstance(value, Mapping):
        pairs = (f"{write_json(key)}: {_written(item)}" for key, item in value.items())
        return "{" + ", ".join(pairs) + "}"
    return write_json(value)
