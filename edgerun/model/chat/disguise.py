"""Content that cannot be mistaken for control tokens, whatever a template does with it.

Rendered text is searched for control tokens, so no character of what a user wrote may take part
in one. A token begins and ends with one of few characters (``<`` and ``>``, as a rule). Content
is rendered with private stand-ins for these, or with a mark on both sides of each, and the
rendered text is searched before the disguise is taken off. Filters that spell characters anew
(``tojson(ensure_ascii=true)``, ``urlencode``) spell stand-ins and marks too; those spellings are
taken back as well.

Left is content that a template puts between the ends of a token, as in ``<{{ name }}>``. Such
content is a part of a token as a whole; then its first character gets a stand-in, too.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any, Protocol

from edgerun.errors import InputError, PromptError
from edgerun.model.text.controls import ControlTokens

# Noncharacters first: no text should hold them. Then private use.
RESERVED = (*range(0xFDD0, 0xFDF0), *range(0xE000, 0xF900))
# One of them as it is, as JSON and programs escape it, perhaps several times over, and as its
# bytes stand in a URL, perhaps with percent signs that were quoted again. Backslashes are matched
# as a whole whether a code follows them or not: to look again from each of many takes long.
SPELLING = re.compile(
    r"(?P<raw>[\ufdd0-\ufdef\ue000-\uf8ff])"
    r"|(?P<slashes>\\+|(?P<slash>%(?:25)*5c)(?P=slash)*)"
    r"(?:u(?P<open>\{)?(?P<code>fd[de][0-9a-f]|[ef][0-9a-f]{3})(?(open)\}))?"
    r"|%(?P<percents>(?:25)*)(?P<first>e[ef])%(?P=percents)(?P<second>[89ab][0-9a-f])"
    r"%(?P=percents)(?P<third>[89ab][0-9a-f])",
    re.IGNORECASE,
)
# ASCII that no filter treats apart, in the order in which ``StandIns.plainly`` takes them.
PLAIN = "~^@#*+;?!$%=_-0123456789"


class Disguise(Protocol):
    """A way to make content recognisable in rendered text."""

    def hide(self, text: str, spared: Collection[str] = ()) -> str:
        """Disguises one string of the conversation.

        Args:
            text: the string.
            spared: strings to leave as they are unless they hold an end of a control token.
        """

    def reveal(self, rendered: str) -> str:
        """Takes the disguise off what a template made of disguised content."""


@dataclass(frozen=True)
class StandIns:
    """Writes private characters for those that could begin or end a control token.

    Lengths stay, and nothing that a template cuts off can take the disguise along.

    Attributes:
        controls: of the tokenizer.
        characters: a character that is free in the conversation for each of the alphabet.
    """

    controls: ControlTokens
    characters: Mapping[str, str]

    def hide(self, text: str, spared: Collection[str] = ()) -> str:
        """Disguises one string; see ``Disguise``."""
        hidden = self.controls.ends.sub(lambda match: self.characters[match[0]], text)
        if hidden == text and text not in spared and self.controls.is_part(text):
            start = len(text) - len(text.lstrip())
            return text[:start] + self.characters[text[start]] + text[start + 1 :]
        return hidden

    def reveal(self, rendered: str) -> str:
        """Writes the real characters, spelled as their stand-ins are."""
        real = {hidden: character for character, hidden in self.characters.items()}
        return _respell(rendered, real)

    def plainly(self) -> tuple[StandIns, Callable[[str], str]]:
        """Tells whether a template spells stand-ins in a way that can be undone.

        Returns:
            A disguise that writes an ordinary character for all that are hidden, and what does the
            same to text with these stand-ins: if it can be undone, it gives what the template makes
            of content disguised so.
        """
        plain = next((each for each in PLAIN if each not in self.controls.alphabet), PLAIN[0])
        ordinary = dict.fromkeys(self.characters.values(), plain)
        return (
            StandIns(self.controls, dict.fromkeys(self.characters, plain)),
            lambda rendered: _respell(rendered, ordinary),
        )


@dataclass(frozen=True)
class Marks:
    """Puts a private character on both sides of those that could begin or end a control token.

    The characters themselves stay, so that filters find them that replace them (``escape``).

    Attributes:
        controls: of the tokenizer.
        mark: free in the conversation.
    """

    controls: ControlTokens
    mark: str

    def hide(self, text: str, spared: Collection[str] = ()) -> str:
        """Disguises one string; see ``Disguise``."""
        hidden = self.controls.ends.sub(lambda match: self.mark + match[0] + self.mark, text)
        if hidden == text and text not in spared and self.controls.is_part(text):
            start = len(text) - len(text.lstrip())
            place = min(start + 1, len(text.rstrip()) - 1)  # the first letter stays the first
            return text[:place] + self.mark + text[place:]
        return hidden

    def reveal(self, rendered: str) -> str:
        """Removes the marks, however they are spelled."""
        return _respell(rendered, {self.mark: ""})


def make_disguises(controls: ControlTokens, conversation: Any) -> tuple[StandIns, Marks]:
    """Both disguises, with characters that the conversation does not hold in any spelling.

    Args:
        controls: of the tokenizer.
        conversation: all that the template will see, as JSON.

    Raises:
        PromptError: there are too few such characters, or surrogates among the others.
        InputError: the conversation cannot be written as JSON.
    """
    text = _as_json(conversation)
    taken = {_character(match) for match in SPELLING.finditer(text)}
    count = len(controls.alphabet) + 1
    free = list(islice((char for char in map(chr, RESERVED) if char not in taken), count))
    if len(free) < count:
        raise PromptError("the conversation uses too many private-use characters; remove some")
    mark, *others = free
    return StandIns(controls, dict(zip(controls.alphabet, others, strict=False))), Marks(
        controls, mark
    )


def _as_json(conversation: Any) -> str:
    try:
        text = json.dumps(conversation, ensure_ascii=False, default=str)
        text.encode()
    except UnicodeEncodeError as error:
        raise PromptError(
            "a message contains a surrogate code point, which is not a character: "
            "pass text that can be encoded as UTF-8"
        ) from error
    except (TypeError, ValueError, RecursionError) as error:
        raise InputError(f"the messages cannot be written as JSON: {error}") from error
    return text


def _respell(rendered: str, real: Mapping[str, str]) -> str:
    """Writes other characters for some of the reserved ones, in the spelling of each."""

    def spell(match: re.Match[str]) -> str:
        character = real.get(_character(match))
        if character is None:
            return match[0]
        if match["raw"]:
            return character
        return _escaped(match, character) if match["code"] else _quoted(match, character)

    return SPELLING.sub(spell, rendered)


def _character(match: re.Match[str]) -> str:
    """The reserved character that is spelled; empty for backslashes alone."""
    if match["raw"]:
        return match["raw"]
    if match["slashes"]:
        return chr(int(match["code"], 16)) if match["code"] else ""
    return bytes.fromhex(match["first"] + match["second"] + match["third"]).decode()


def _escaped(match: re.Match[str], character: str) -> str:
    """A character in JSON.

    Of a number of backslashes, one escapes where the text was written as JSON once, two where
    twice, then four; the others are content, and always a multiple of twice as many.
    """
    slash = match["slash"] or "\\"
    count = len(match["slashes"]) // len(slash)
    escapes = count & -count
    content = match["slashes"][: len(slash) * (count - escapes)]
    if not character.isascii():
        code = json.dumps(character)[1:-1].replace("\\", slash * escapes)
        return content + code
    if match["slash"]:
        character = _percent_encoded(character, slash.count("25"))
    return content + character


def _quoted(match: re.Match[str], character: str) -> str:
    return _percent_encoded(character, len(match["percents"]) // 2)


def _percent_encoded(character: str, again: int) -> str:
    """As it stands in a URL, percent signs encoded so many times more."""
    from urllib.parse import quote  # rarely needed, and slow to import

    return quote(character).replace("%", "%" + "25" * again)
