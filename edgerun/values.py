"""Values as callers pass them: what they are, how a message shows them; and what they are told."""

from __future__ import annotations

import reprlib
from collections.abc import Sequence
from numbers import Integral

MOST_COMPARED = 100  # characters of a name: of a million it would take a quarter of a second
MOST_DIGITS = 18  # of a number that fits 64 bits whatever they are


class Notice(str):
    """A text for ``progress`` that a user is to read, and not a step that is under way."""

    __slots__ = ()


def as_int(value: object) -> int | None:
    """Returns a whole number of Python or NumPy as an int; None for all else, bools included."""
    if type(value) is int:
        return value
    if isinstance(value, bool) or not isinstance(value, Integral):
        return None
    return int(value)


def whole_number(text: str) -> int | None:
    """Returns the number that ASCII digits spell; None for other text and for more than 18 of them.

    ``str.isdigit`` takes characters that ``int`` refuses, and ``int`` refuses thousands of digits.
    """
    is_number = 0 < len(text) <= MOST_DIGITS and text.isascii() and text.isdigit()
    return int(text) if is_number else None


class _Repr(reprlib.Repr):
    def repr_int(self, x: int, level: int) -> str:
        """Python writes no numbers of over 4300 digits (``sys.set_int_max_str_digits``)."""
        try:
            return super().repr_int(x, level)
        except ValueError:
            return f"<a whole number of {x.bit_length()} bits>"


_REPR = _Repr()


def shown(value: object) -> str:
    """Returns a value as Python writes it, on one line and not too long."""
    return " ".join(_REPR.repr(value).split())


def suggestion(name: str, names: Sequence[str]) -> str:
    """The end of a message about a name that is none of ``names``."""
    import difflib

    is_long = len(name) > MOST_COMPARED
    close = [] if is_long else difflib.get_close_matches(name, names, 1)
    return f": did you mean {close[0]!r}?" if close else f"; there are {', '.join(names)}"
