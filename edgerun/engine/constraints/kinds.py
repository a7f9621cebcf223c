"""The three ways to say what a reply is: a JSON schema, a regular expression, a grammar."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from edgerun.errors import SamplingError
from edgerun.values import shown

MAX_BYTES = 1 << 20  # of a schema or a grammar; what llguidance makes of more is over its limits
MAX_REGEX_BYTES = 1 << 16
SHOWN_CHARACTERS = 400
WHOLE_SCHEMAS = ("true", "false")  # JSON schemas that are no objects


class _Form(ABC):
    """A text of some form, or None; ``values`` says which."""

    accepts, flag, metavar, values = "str | None", str, "TEXT", ""

    def check(self, name: str, value: Any) -> str | None:
        """The text that stands for a value.

        Raises:
            SamplingError: it is not of the form, or longer than it may be.
        """
        return None if value is None else self._checked(name, value)

    @abstractmethod
    def _checked(self, name: str, value: Any) -> str: ...

    def parse(self, text: str) -> str:
        return text

    def write(self, value: str | None) -> str:
        return _short(value)

    def _wrong(self, name: str, value: Any) -> SamplingError:
        return SamplingError(f"{name} is {shown(value)}; expected {self.values}")


@dataclass(frozen=True)
class Schema(_Form):
    """A JSON schema, held as JSON text; typed as it is, or as the name of a file."""

    accepts, metavar = "Mapping[str, Any] | bool | str | None", "FILE|JSON"
    values = "a JSON schema: an object, or its text"

    def _checked(self, name: str, value: Any) -> str:
        if isinstance(value, str):
            value = _loaded(name, _sized(name, value, MAX_BYTES))
        if not isinstance(value, Mapping | bool):
            raise self._wrong(name, value)
        return _sized(name, _dumped(name, value), MAX_BYTES)

    def parse(self, text: str) -> str:
        inline = text.lstrip().startswith("{") or text.strip() in WHOLE_SCHEMAS
        return text if inline else _read(text, "a JSON schema, or the schema itself: {...}")


@dataclass(frozen=True)
class Regex(_Form):
    """A regular expression that the whole reply matches."""

    values = "a regular expression"

    def _checked(self, name: str, value: Any) -> str:
        if not isinstance(value, str) or not value:
            raise self._wrong(name, value)
        return _sized(name, value, MAX_REGEX_BYTES)


@dataclass(frozen=True)
class Grammar(_Form):
    """A grammar, typed as the name of a file."""

    metavar = "FILE"
    values = "a grammar in Lark's form, or in llama.cpp's (GBNF)"

    def _checked(self, name: str, value: Any) -> str:
        if not isinstance(value, str) or not value.strip():
            raise self._wrong(name, value)
        return _sized(name, value, MAX_BYTES)

    def parse(self, text: str) -> str:
        return _read(text, self.values)


def _sized(name: str, text: str, most: int) -> str:
    try:
        size = len(text.encode())
    except UnicodeEncodeError as error:
        raise SamplingError(f"{name} holds half of a pair of surrogates: no character") from error
    if size > most:
        raise SamplingError(f"{name} has {size} bytes; expected at most {most}")
    return text


def _loaded(name: str, text: str) -> Any:
    try:
        return json.loads(text, parse_constant=_no_constant)
    except ValueError as error:
        raise SamplingError(f"{name} is {shown(text)}, which is not JSON: {error}") from error
    except RecursionError as error:
        raise SamplingError(f"{name} is nested too deeply") from error


def _no_constant(text: str) -> None:
    raise ValueError(f"{text} is no number of JSON")


def _dumped(name: str, value: Any) -> str:
    try:
        return json.dumps(dict(value) if isinstance(value, Mapping) else value, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise SamplingError(f"{name} holds what JSON cannot express: {error}") from error
    except RecursionError as error:
        raise SamplingError(f"{name} is nested too deeply") from error


def _read(name: str, what: str) -> str:
    """Reads a file of at most ``MAX_BYTES``.

    Raises:
        SamplingError: it cannot be read, or is no text of that size.
    """
    expected = f"expected a file with {what}"
    if not name.strip():
        raise SamplingError(f"{shown(name)} is empty and names no file; {expected}")
    try:
        with Path(name).expanduser().open("rb") as file:
            data = file.read(MAX_BYTES + 1)
        text = data.decode("utf-8-sig")
    except RuntimeError as error:
        raise SamplingError(f"{shown(name)} begins with the home folder of nobody here") from error
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "it is not text in UTF-8"
        raise SamplingError(f"{shown(name)} cannot be read: {reason}; {expected}") from error
    if len(data) > MAX_BYTES:
        raise SamplingError(f"{shown(name)} has more than {MAX_BYTES} bytes; {expected}")
    return text


def _short(value: str | None) -> str:
    """A value on a line: in full where that is of a length that a person would read."""
    if value is None:
        return "none"
    line = value if len(value) <= SHOWN_CHARACTERS else f"{value[:SHOWN_CHARACTERS]}…"
    return line.replace("\n", " ")
