"""Tells what a model thinks from what it answers, while the reply comes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from edgerun.model.chat.thinking.form import ThoughtForm
from edgerun.model.chat.tools.incoming import Incoming, Reading
from edgerun.model.chat.tools.markers import Markers

BLANK = " \t\r\n"
BETWEEN = "\n\n"  # two thoughts, or two messages


class Thought(NamedTuple):
    """A piece of what the model thinks."""

    text: str


class ThoughtReader:
    """Reads one reply.

    Text comes out of it as soon as it is clear what it belongs to. Blanks around a thought, and
    those between it and the answer, belong to neither. The same comes of a reply however it is
    cut into pieces.

    Attributes:
        text: what has come of the reply and is not told apart.
        is_thinking: whether a thought has begun and not ended.
    """

    def __init__(self, form: ThoughtForm, markers: Markers, *, begun: bool) -> None:
        """Begins a reply.

        Args:
            form: in which the model marks what it thinks.
            markers: control tokens as they stand in the text.
            begun: the prompt ends in a thought, with which the reply goes on.
        """
        self.text = Incoming(markers)
        self._thinks, self._says = _Messages(), _Messages()
        self._events: list[Thought | str] = []
        self.is_thinking = begun
        self._run = form.read(self, begun=begun)
        next(self._run, None)

    def push(self, text: str) -> Sequence[Thought | str]:
        """Takes the next text; returns thoughts and texts that are certain now, in their order.

        Control tokens stand in them as they do in what is read.
        """
        self.text.feed(text)
        return self._advance()

    def finish(self) -> Sequence[Thought | str]:
        """Ends the reply; returns what is left of it."""
        self.text.end()
        return self._advance()

    def say(self, text: str) -> None:
        """Passes on a part of the answer."""
        if text:
            self._events.append(text)

    def say_rest(self) -> Reading[None]:
        """Passes on all that comes, as the answer."""
        text = self.text
        while True:
            self.say(text.text[text.at :])
            text.at = len(text.text)
            if text.has_ended:
                return
            yield

    def say_until(self, closing: str) -> Reading[None]:
        """Passes on a message of the answer, and reads what ends it."""
        yield from self._until(closing, self._says, self.say)

    def think_until(self, closing: str) -> Reading[None]:
        """Passes on a thought, and reads what ends it."""
        self.is_thinking = True
        yield from self._until(closing, self._thinks, self._think)
        self.is_thinking = False

    def say_before(self, ending: str) -> Reading[None]:
        """Passes on all that comes as the answer, but for what may end it and blanks there."""
        text, literal, held = self.text, self.text.coded(ending), ""
        yield from text.spaces()
        while True:
            held += text.text[text.at :]
            text.at = len(text.text)
            said = held.rstrip(BLANK)
            said = said.removesuffix(literal).rstrip(BLANK)
            if not text.has_ended:
                said = said[: len(said) - _begun(literal, said)].rstrip(BLANK)
            self.say(said)
            held = held[len(said) :]
            if text.has_ended:
                return
            yield

    def _think(self, text: str) -> None:
        if text:
            self._events.append(Thought(text))

    def _until(
        self, closing: str, messages: _Messages, take: Callable[[str], None]
    ) -> Reading[None]:
        text, literal = self.text, self.text.coded(closing)
        messages.begin()
        while True:
            place = text.text.find(literal, text.at)
            end = place if place >= 0 else self._certain(literal)
            take(messages.add(text.text[text.at : end]))
            text.at = end if place < 0 else end + len(literal)
            if place >= 0 or text.has_ended:
                return
            yield

    def _certain(self, literal: str) -> int:
        """How far the text cannot be the beginning of a literal."""
        text = self.text
        if text.has_ended:
            return len(text.text)
        return len(text.text) - min(_begun(literal, text.text), len(text.text) - text.at)

    def _advance(self) -> Sequence[Thought | str]:
        next(self._run, None)
        events, self._events = self._events, []
        return events


def _begun(literal: str, text: str) -> int:
    """How much of the beginning of a literal a text ends with."""
    most = min(len(literal) - 1, len(text))
    lengths = (length for length in range(most, 0, -1) if text.endswith(literal[:length]))
    return next(lengths, 0)


class _Messages:
    """Thoughts, or messages of an answer, without the blanks around each of them."""

    def __init__(self) -> None:
        self._blanks: list[str] = []  # which belong to a message if its text goes on
        self._has_text = self._has_begun = False

    def begin(self) -> None:
        """Begins a message, or one more."""
        self._blanks = [BETWEEN] if self._has_text else []
        self._has_begun = False

    def add(self, text: str) -> str:
        """Takes the next text of a message; returns what is certain to belong to it."""
        text = text if self._has_begun else text.lstrip(BLANK)
        end = len(text.rstrip(BLANK))
        if not end:
            self._blanks += [text] if text else []
            return ""
        said = "".join(self._blanks) + text[:end]
        self._blanks = [text[end:]]
        self._has_text = self._has_begun = True
        return said
