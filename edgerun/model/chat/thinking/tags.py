"""Thoughts between two tags, at the beginning of a reply."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from edgerun.model.chat.thinking.form import AnswerStart, Path, ThoughtForm
from edgerun.model.text.controls import ControlTokens

if TYPE_CHECKING:
    from edgerun.model.chat.thinking.reader import ThoughtReader
    from edgerun.model.chat.tools.incoming import Reading
    from edgerun.model.text.tokenizer import Tokenizer


BLANKS = ("\n", "\n\n", " ", "\t", "\r\n")


@dataclass(frozen=True)
class Tags(ThoughtForm):
    """``<think>...</think>`` and its like.

    Attributes:
        opening: begins a thought; it stands at the beginning of a reply, or at the end of a prompt.
        closing: ends it; the answer follows.
        wrappings: tags in one pair of which the answer stands, and which are no part of it.
        label: what may stand behind the opening, and is no part of the thought.
        ending: what may stand behind an answer that follows a thought, and is no part of it.
    """

    opening: str
    closing: str
    wrappings: tuple[tuple[str, str], ...] = ()
    label: str = ""
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
        ways = (Path((controls.id_of(self.closing),), answers=True),)
        if begun:
            return AnswerStart(ways, begun=True)
        if self.opening not in controls.names:
            return None
        beginning = Path((controls.id_of(self.opening),), answers=False)
        blanks = (ids for ids in tokenizer.encode_many(BLANKS, bos=False) if len(ids) == 1)
        before = frozenset(id_ for (id_,) in blanks)
        return AnswerStart(ways, (beginning,), may_answer=True, blanks=before)

    def has_begun(self, prompt: str) -> bool:
        return super().has_begun(prompt.rstrip().removesuffix(self.label))

    def read(self, reply: ThoughtReader, *, begun: bool) -> Reading[None]:
        text = reply.text
        spaces = yield from text.spaces()
        if (yield from text.follows(self.opening)):  # some models begin what has begun once more
            yield from text.follows(self.label)
        elif not begun:
            reply.say(spaces)
            yield from reply.say_rest()
            return
        yield from reply.think_until(self.closing)
        yield from text.spaces()
        for opening, closing in self.wrappings:
            if (yield from text.follows(opening)):
                yield from reply.say_before(closing)
        if self.ending:
            yield from reply.say_before(self.ending)
        yield from reply.say_rest()
