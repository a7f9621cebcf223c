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
        suits: whether an id does, of a function, whose name is empty if nobody knows it.
        make: returns a new id, for a function.
        derive: returns one that suits for one that does not, of a function, the n-th call of a
            conversation; always the same.
    """

    suits: Callable[[str, str], bool]
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


def _is_numbered(id_: str, name: str) -> bool:
    return re.fullmatch(rf"functions\.{re.escape(name) or '.+'}:\d+", id_) is not None


ANY = IdKind(
    lambda id_, name: True,
    lambda name: f"call_{secrets.token_hex(12)}",
    lambda id_, name, index: id_,
)
# Mistral's: nine letters and digits.
NINE = IdKind(
    lambda id_, name: re.fullmatch(rf"[A-Za-z0-9]{{{SHORT}}}", id_) is not None,
    lambda name: _short(next(_NUMBERS)),
    _hashed,
)
# Kimi's: the function, and the number of the call.
NUMBERED = IdKind(
    _is_numbered,
    lambda name: f"functions.{name}:{next(_INDICES)}",
    lambda id_, name, index: f"functions.{name}:{index}",
)
KINDS = (ANY, NINE, NUMBERED)
