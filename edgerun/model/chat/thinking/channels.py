"""Thoughts in a channel of their own: gpt-oss (OpenAI's harmony format).

A reply is several messages, ``<|channel|>analysis<|message|>...<|end|>`` and then
``<|start|>assistant<|channel|>final<|message|>...``. What is said before functions are called
stands in the channel of commentary, as calls do, which have a recipient.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from edgerun.model.chat.thinking.form import AnswerStart, Path, ThoughtForm
from edgerun.model.text.controls import ControlTokens

if TYPE_CHECKING:
    from edgerun.model.chat.thinking.reader import ThoughtReader
    from edgerun.model.chat.tools.incoming import Incoming, Reading
    from edgerun.model.text.tokenizer import Tokenizer

START, CHANNEL, MESSAGE, END = "<|start|>", "<|channel|>", "<|message|>", "<|end|>"
SPEAKER = f"{START}assistant"
THINKING, SAYING = "analysis", ("final", "commentary")
RECIPIENT = "to=functions."
CONSTRAIN = "<|constrain|>"
MOST = 256  # characters between a channel and its message


@dataclass(frozen=True)
class Channels(ThoughtForm):
    """Messages in channels, one of which is for thoughts."""

    opening: str = CHANNEL + THINKING + MESSAGE
    closing: str = END
    heads_answers: ClassVar[bool] = True

    @property
    def texts(self) -> tuple[str, ...]:
        return (START, CHANNEL, MESSAGE, END, CONSTRAIN)

    def suited(self, source: str, controls: ControlTokens) -> Channels | None:
        return self if {START, CHANNEL, MESSAGE, END} <= {*controls.names} else None

    def answer_start(self, tokenizer: Tokenizer, *, begun: bool) -> AnswerStart | None:
        speaker, *kinds = tokenizer.encode_many(["assistant", THINKING, SAYING[0]], bos=False)
        end, start, channel, message = map(tokenizer.controls.id_of, (END, START, CHANNEL, MESSAGE))
        heads = [(channel, *kind, message) for kind in kinds]
        beginnings, ways = (
            tuple(
                Path((*before, *head), answers)
                for head, answers in zip(heads, (False, True), strict=True)
            )
            for before in ((), (end, start, *speaker))
        )
        return AnswerStart(ways, beginnings, begun)

    def read(self, reply: ThoughtReader, *, begun: bool) -> Reading[None]:
        text, kind = reply.text, THINKING if begun else ""
        while True:
            mark = text.mark()
            if not kind:
                kind = yield from self._kind(text)
            begin = text.since(mark)
            if not kind:
                reply.say(begin)  # a call, or no message at all
                yield from reply.say_rest()
                return
            until = reply.think_until if kind == THINKING else reply.say_until
            yield from until(END)
            kind = ""

    def _kind(self, text: Incoming) -> Reading[str]:
        """Reads what stands before a message; its channel, or nothing if it is no such message."""
        yield from text.follows(SPEAKER)
        if not (yield from text.follows(CHANNEL)):
            return ""
        end, head = text.coded(MESSAGE), ""
        while end not in head and len(head) < MOST:
            more = yield from text.ahead(len(head) + 1)
            if len(more) == len(head):
                break
            head = more
        head, message, _ = head.partition(end)
        if not message:
            return ""
        channel = head.split(text.coded(CONSTRAIN))[0].split()
        kind = channel[0] if channel else ""
        if RECIPIENT in head or kind not in (THINKING, *SAYING):
            return ""
        text.at += len(head) + len(message)
        return kind
