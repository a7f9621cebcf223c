"""Which added tokens control a model, where a rendered template holds them, and how to hide them.

An added token is a control token if it is declared special, or has several characters that are not
letters, digits and spaces alone: ``<think>`` controls a reasoning model although it is not declared
special, while the runs of spaces and single characters that some vocabularies add are ordinary
text, also as SentencePiece writes spaces (Gemma's ``▁▁``), and so are words with vowel signs. A
special token of one character could not be told from text, so templates cannot name it.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from operator import itemgetter
from os.path import commonprefix

from edgerun.model.text.facts import SPACE, AddedToken

BETWEEN = "\0"  # names that are looked through together
MOST_LEVELS = 16  # of groups in an expression


class ControlTokens:
    """The control tokens of one tokenizer.

    Attributes:
        names: as they are spelled.
        ids: of those that text must never give.
        alphabet: every character of those that templates can name, in order.
        ends: matches the characters with which those begin and end.
    """

    def __init__(self, tokens: Mapping[str, AddedToken], not_control: frozenset[int]) -> None:
        """Use ``of``."""
        self._tokens = dict(tokens)
        self.names = tuple(tokens)
        self.ids = frozenset(token.id for token in tokens.values()) - not_control
        self._any = _alternatives(name for name in tokens if len(name) > 1)
        long = [name for name in tokens if len(name) > 1]
        self.alphabet = "".join(sorted(set("".join(long))))
        self.ends = _alternatives({character for name in long for character in (name[0], name[-1])})
        self._long = BETWEEN.join(long)
        self._longest = max(map(len, long), default=0)

    @classmethod
    def of(cls, added: Iterable[AddedToken]) -> ControlTokens:
        """Picks the control tokens out of a tokenizer's added tokens."""
        tokens = {
            token.content: token
            for token in added
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
        tail = text[start:]
        yield (tail.lstrip() if strip else tail), None

    def replace(self, text: str, spell: Callable[[str], str]) -> str:
        """Writes something else for each control token that a rendered template holds."""
        return self._any.sub(lambda match: spell(match[0]), text)

    def names_in(self, text: str) -> list[str]:
        """The control tokens that a rendered template holds, as they are spelled."""
        return self._any.findall(text)

    def id_of(self, name: str) -> int:
        """The id of a control token."""
        return self._tokens[name].id

    def starts(self, text: str) -> bool:
        """Whether ``text`` begins with a control token."""
        return bool(self._tokens) and self._any.match(text) is not None

    def is_part(self, text: str) -> bool:
        """Whether a whole text, spaces around it aside, could be part of a control token."""
        inner = text.strip()
        return 0 < len(inner) <= self._longest and inner in self._long

    def tags(self, inspected: Iterable[str]) -> re.Pattern[str]:
        """Matches, as a group, control tokens that stay effective in a model's own replies.

        Those are the tokens not declared special, and of the others those in ``inspected``.
        """
        chosen = set(inspected)
        effective = _alternatives(
            name
            for name, token in self._tokens.items()
            if len(name) > 1 and (name in chosen or not token.special)
        )
        return re.compile(f"({effective.pattern})")


def _is_plain(content: str) -> bool:
    return len(content) == 1 or all(map(_is_ordinary, content))


def _is_ordinary(character: str) -> bool:
    """Whether a character is a letter, a mark of one, a digit or a space."""
    is_mark = unicodedata.category(character).startswith("M")
    return is_mark or character.isalnum() or character.isspace() or character == SPACE


def _alternatives(names: Iterable[str]) -> re.Pattern[str]:
    """Matches the longest of the names at the leftmost place; nothing if there are none."""
    ordered = sorted(set(names))
    return re.compile(_expression(ordered, MOST_LEVELS) if ordered else r"(?!)")


def _expression(names: Sequence[str], levels: int) -> str:
    """An expression for names, in order, in which those that begin alike have that in common.

    Of thousands one after the other would be tried wherever the first character of one stands.
    """
    if levels == 0 or len(names) == 1:
        return "|".join(map(re.escape, sorted(names, key=len, reverse=True)))
    expressions = []
    for _, group in groupby(names, key=itemgetter(0)):
        same = list(group)
        start = commonprefix(same)
        rests = [name[len(start) :] for name in same if name != start]
        end = f"(?:{_expression(rests, levels - 1)})" if rests else ""
        expressions.append(re.escape(start) + end + ("?" if rests and start in same else ""))
    return "|".join(expressions)
