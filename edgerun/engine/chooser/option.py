"""Options of generating: what a value may be, said once, beside the field that holds it.

A class of options is a frozen dataclass whose fields are made with ``option``. From them come the
checks, the flags of the command line, the names in Python, and the table in docs/python.md.
"""

from __future__ import annotations

import math
from contextlib import suppress
from dataclasses import dataclass, field, fields
from functools import cache
from numbers import Real
from typing import Any, Protocol

from edgerun.errors import SamplingError
from edgerun.values import as_int, shown

TRUE, FALSE = ("true", "on", "yes"), ("false", "off", "no")  # as somebody types them


class Kind(Protocol):
    """What the values of an option are.

    Attributes:
        accepts: what callers may pass, as a type checker writes it.
        flag: what the command line reads; ``str`` for a text that ``parse`` takes.
        metavar: stands for the value on help pages.
        values: the range, in a few words.
    """

    @property
    def accepts(self) -> str: ...
    @property
    def flag(self) -> Any: ...
    @property
    def metavar(self) -> str: ...
    @property
    def values(self) -> str: ...

    def check(self, name: str, value: Any) -> Any:
        """Returns a value as options hold it; NumPy's numbers become Python's.

        Raises:
            SamplingError: it is of another type or out of range.
        """

    def parse(self, text: str) -> Any:
        """Reads a value that somebody typed.

        Raises:
            ValueError: it is none.
        """

    def write(self, value: Any) -> str:
        """Writes a value as ``parse`` takes it; ``none`` stands for the lack of one."""


@dataclass(frozen=True)
class Number:
    """Finite numbers from ``low``, or above it, to ``high``."""

    low: float
    high: float
    above_low: bool = False
    accepts, flag, metavar = "float", float, "X"

    @property
    def values(self) -> str:
        start = f"above {self.low:g} up" if self.above_low else f"from {self.low:g}"
        return f"a number {start} to {self.high:g}"

    def check(self, name: str, value: Any) -> float:
        number = math.nan
        if isinstance(value, Real) and not isinstance(value, bool):
            with suppress(OverflowError):  # of whole numbers that no float can hold
                number = float(value)
        if not self.low <= number <= self.high or (self.above_low and number == self.low):
            raise SamplingError(f"{name} is {shown(value)}; expected {self.values}")
        return number

    def parse(self, text: str) -> float:
        return float(text)

    def write(self, value: float) -> str:
        return str(value)


@dataclass(frozen=True)
class Whole:
    """Whole numbers from ``low`` to ``high``, and None where it is ``optional``."""

    low: int
    high: int
    optional: bool = False
    flag, metavar = int, "N"

    @property
    def accepts(self) -> str:
        return "int | None" if self.optional else "int"

    @property
    def values(self) -> str:
        return f"a whole number from {self.low} to {self.high}"

    def check(self, name: str, value: Any) -> Any:
        if value is None and self.optional:
            return None
        number = as_int(value)
        if number is None or not self.low <= number <= self.high:
            raise SamplingError(f"{name} is {shown(value)}; expected {self.values}")
        return number

    def parse(self, text: str) -> int:
        return int(text)

    def write(self, value: int | None) -> str:
        return "none" if value is None else str(value)


@dataclass(frozen=True)
class Switch:
    """True or False."""

    accepts, flag, metavar, values = "bool", bool, "", "True or False"

    def check(self, name: str, value: Any) -> bool:
        if not isinstance(value, bool):
            raise SamplingError(f"{name} is {shown(value)}; expected {self.values}")
        return value

    def parse(self, text: str) -> bool:
        if text.lower() not in (*TRUE, *FALSE):
            raise ValueError(text)
        return text.lower() in TRUE

    def write(self, value: bool) -> str:
        return "on" if value else "off"


@dataclass(frozen=True)
class Option:
    """What is known of an option but for its value.

    Attributes:
        name: in Python and, with dashes, on the command line.
        default: changes nothing of what the model computes.
        kind: what it may be.
        help: a sentence or two, for the help page and the documentation.
        letter: short flag, such as ``-n``, if it has one.
    """

    name: str
    default: Any
    kind: Kind
    help: str
    letter: str = ""

    def read(self, text: str) -> Any:
        """Reads a value that somebody typed.

        Raises:
            SamplingError: it is none.
        """
        try:
            return self.kind.parse(text)
        except ValueError:
            raise SamplingError(
                f"{self.name} is {shown(text)}; expected {self.kind.values}"
            ) from None


def option(default: Any, kind: Kind, help: str, letter: str = "") -> Any:
    """Declares a field of a class of ``Options``; see ``Option``."""
    return field(
        default_factory=lambda: default,
        metadata={"option": (default, kind, " ".join(help.split()), letter)},
    )


@dataclass(frozen=True)
class Options:
    """Base of what holds options, all checked when made; its subclasses are frozen dataclasses.

    Raises:
        SamplingError: a value is outside its range.
    """

    def __post_init__(self) -> None:
        """Checks every value."""
        for entry in self.options():
            value = entry.kind.check(entry.name, getattr(self, entry.name))
            object.__setattr__(self, entry.name, value)

    @classmethod
    def options(cls) -> tuple[Option, ...]:
        """Returns the options in the order of their fields."""
        return _options(cls)  # type: ignore[arg-type]  # it can be hashed: mypy means instances


@cache
def _options(cls: type[Options]) -> tuple[Option, ...]:
    return tuple(
        Option(entry.name, *entry.metadata["option"])
        for entry in fields(cls)
        if "option" in entry.metadata
    )
