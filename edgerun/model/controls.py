"""Which added tokens control a model, where a rendered template holds them, and how to hide them.

An added token is a control token if it is declared special, or has several characters that are not
letters, digits and spaces alone: ``<think>`` controls a reasoning model although it is not declared
special, while the runs of spaces and single characters that some vocabularies add are ordinary
text. A special token of one character could not be told from text, so templates cannot name it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Control:
    """One control token.

    Attributes:
        id: token id.
        strip_left: spaces before it belong to it.
        strip_right: spaces behind it belong to it.
        special: declared special, so never part of visible text.
    """

    id: int
    strip_left: bool
    strip_right: bool
    special: bool


class ControlTokens:
    """The control tokens of one tokenizer."""

    def __init__(self, tokens: Mapping[str, Control], not_control: frozenset[int]) -> None:
        """Use ``of``."""
        self._tokens = dict(tokens)
        self.names = tuple(tokens)
        self.ids = frozenset(token.id for token in tokens.values()) - not_control
        self._any = _alternatives(name for name in tokens if len(name) > 1)
        self._special = _alternatives(name for name, token in tokens.items() if token.special)
        self._starts = _alternatives({name[0] for name in tokens})
        self._tails = sorted({name[k:] for name in tokens for k in range(1, len(name))})

    @classmethod
    def of(cls, added: Mapping[int, Any]) -> ControlTokens:
        """Picks the control tokens out of a tokenizer's added tokens, given by id."""
        tokens = {
            token.content: Control(id_, token.lstrip, token.rstrip, token.special)
            for id_, token in added.items()
            if token.content and (token.special or not _is_plain(token.content))
        }
        # The model answers unknown text with its unk token; that is not an injection.
        unknown = frozenset(
            token.id for name, token in tokens.items() if name.lower() in ("<unk>", "[unk]")
        )
        return cls(tokens, unknown)

    def split(self, text: str) -> Iterator[tuple[str, int | None]]:
        """Yields ``(plain text, id of the control token behind it)``; the last id is None."""
        start, strip = 0, False
        for match in self._any.finditer(text) if self._tokens else ():
            control = self._tokens[match.group()]
            run = text[start : match.start()]
            run = run.lstrip() if strip else run
            yield (run.rstrip() if control.strip_left else run), control.id
            start, strip = match.end(), control.strip_right
        rest = text[start:]
        yield (rest.lstrip() if strip else rest), None

    def starts(self, text: str) -> bool:
        """Whether ``text`` begins with a control token."""
        return bool(self._tokens) and self._any.match(text) is not None

    def protect(self, text: str, marker: str, *, own_reply: bool) -> str:
        """Puts ``marker`` into ``text`` wherever a control token could begin or go on.

        A control token in a rendered template begins either with a character of the template or
        with one of the text. The second is followed by a marker. For the first, the text would
        have to go on with the rest of the token, so a text that begins like such a rest gets a
        marker in front. Either way no match can contain a character of the text.
        """
        if not self._tokens or not text:
            return text
        if own_reply:
            return self._special.sub(lambda match: match[0][0] + marker + match[0][1:], text)
        marked = self._starts.sub(lambda match: match[0] + marker, text)
        return marker + marked if self._continues(text) else marked

    def _continues(self, text: str) -> bool:
        return any(text.startswith(tail) or tail.startswith(text) for tail in self._tails)


def _is_plain(content: str) -> bool:
    ordinary = (character.isalnum() or character.isspace() for character in content)
    return len(content) == 1 or all(ordinary)


def _alternatives(names: Iterable[str]) -> re.Pattern[str]:
    """Matches the longest of the names at the leftmost place; nothing if there are none."""
    ordered = sorted(names, key=len, reverse=True)
    return re.compile("|".join(map(re.escape, ordered)) if ordered else r"(?!)")
