"""Thoughts between two tags, at the beginning of a reply."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from edgerun.model.chat.thinking.form import AnswerStart, ThoughtForm
from edgerun.model.text.controls import ControlTokens

if TYPE_CHECKING:
    from edgerun.model.chat.thinking.reader import ThoughtReader
    from edgerun.model.chat.tools.incoming import Reading
    from edgerun.model.text.tokenizer import Tokenizer


@dataclass(frozen=True)
class Tags(ThoughtForm):
    """``<think>...</think>`` and its like.

    Attributes:
        opening: begins a thought; it stands at the beginning of a reply, or at the end of a prompt.
        closing: ends it; the answer follows.
        wrappings: tags in one pair of which the answer stands, and which are no part of it.
        ending: what may stand behind an answer that follows a thought, and is no part of it.
    """

    opening: str
    closing: str
    wrappings: tuple[tuple[str, str], ...] = ()
    ending: str = ""

    @property
    def texts(self) -> tuple[str, ...]:
        tags = (tag for pair in self.wrappings for tag in pair)
        return (self.opening, self.closing, *tags, *([self.ending] if self.ending else ()))

    def suited(self, source: str, controls: ControlTokens) -> Tags | None:
        def has(tag: str) -> bool:
            return tag in source or tag in controls.names

        if not has(self.opening) and not has(self.closing):
            return None
        # A user may have asked for such tags: they are left out where they are the model's own.
        return replace(self, wrappings=tuple(pair for pair in self.wrappings if has(pair[1])))

    def answer_start(self, tokenizer: Tokenizer, *, begun: bool) -> AnswerStart | None:
        controls = tokenizer.controls
        if self.closing not in controls.names:
            return None
        closing = controls.id_of(self.closing)
        if begun:
            return AnswerStart(closing, leading=(closing,))
        opening = controls.names_in(self.opening)[:1]  # of Gemma 4 a word stands behind it
        if not opening or not self.opening.startswith(opening[0]):
            return None
        return AnswerStart(closing, leading=(closing,), opening=controls.id_of(opening[0]))

    def read(self, reply: ThoughtReader, *, begun: bool) -> Reading[None]:
        text = reply.text
        if not begun:
            spaces = yield from text.spaces()
            if not (yield from text.follows(self.opening)):
                reply.say(spaces)
                yield from reply.say_rest()
                return
        yield from reply.think_until(self.closing)
        yield from text.spaces()
        for opening, closing in self.wrappings:
            if (yield from text.follows(opening)):
                yield from text.spaces()
                yield from reply.say_until(closing)
                yield from text.spaces()
        if self.ending:
            yield from reply.say_until(self.ending)
            yield from text.spaces()
        yield from reply.say_rest()
