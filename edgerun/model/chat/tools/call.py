"""Calls of functions, as programs get them, and what they are identified by."""

from __future__ import annotations

import hashlib
import re
import secrets
import string
from collections.abc import Callable
from itertools import count
from typing import NamedTuple

DIGITS = string.digits + string.ascii_lowercase
SHORT = 9
_NUMBERS = count(secrets.randbelow(len(DIGITS) ** SHORT))  # so that two processes differ, too
_INDICES = count()


class ToolCall(NamedTuple):
    """A call of a function that a model asks for.

    Attributes:
        id: names the call in the message with its result; no other call of this process has it.
        name: of the function, which is among the tools.
        arguments: text of a JSON object, by name. It need not be what the schema says.
    """

    id: str
    name: str
    arguments: str


class IdKind(NamedTuple):
    """What chat templates want ids to look like.

    Attributes:
        pattern: which ids suit.
        make: returns a new id, for a function.
        derive: returns one that suits for one that does not, of a function, the n-th call of a
            conversation; always the same.
    """

    pattern: re.Pattern[str]
    make: Callable[[str], str]
    derive: Callable[[str, str, int], str]


def _short(number: int) -> str:
    digits = ""
    for _ in range(SHORT):
        number, digit = divmod(number, len(DIGITS))
        digits = DIGITS[digit] + digits
    return digits


def _hashed(id_: str, name: str, index: int) -> str:
    digest = hashlib.sha256(id_.encode("utf-8", "surrogatepass")).digest()
    return _short(int.from_bytes(digest, "big"))


ANY = IdKind(
    re.compile(r".*", re.DOTALL),
    lambda name: f"call_{secrets.token_hex(12)}",
    lambda id_, name, index: id_,
)
# Mistral's: nine letters and digits.
NINE = IdKind(
    re.compile(rf"[A-Za-z0-9]{{{SHORT}}}"),
    lambda name: _short(next(_NUMBERS)),
    _hashed,
)
# Kimi's: the function, and the number of the call.
NUMBERED = IdKind(
    re.compile(r"functions\..+:\d+"),
    lambda name: f"functions.{name}:{next(_INDICES)}",
    lambda id_, name, index: f"functions.{name}:{index}",
)
KINDS = (ANY, NINE, NUMBERED)
