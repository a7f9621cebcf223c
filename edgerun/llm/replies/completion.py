"""Replies: sampled tokens become text, stop texts end it."""

from __future__ import annotations

import reprlib
from collections.abc import Callable, Generator, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from edgerun.engine.chooser.logprobs import TokenLogprob
from edgerun.engine.engine import Engine
from edgerun.engine.sequence import FinishReason, Sequence, Token
from edgerun.engine.stats import Stats
from edgerun.model.chat.thinking.reader import Thought
from edgerun.model.text.stop_text import StopText

if TYPE_CHECKING:
    from edgerun.model.chat.reply import Event, ReplyReader
    from edgerun.model.chat.tools.call import ToolCall


class Part(NamedTuple):
    """What came of a reply at a time.

    Attributes:
        text: of the answer, often ``""``.
        thinking: what the model thought before it, often ``""``.
    """

    text: str = ""
    thinking: str = ""


@dataclass(slots=True, repr=False)
class Completion:
    """A reply.

    Attributes:
        text: the reply without thoughts, stop texts, control tokens and calls.
        ids: the generated ids, without the one that ended the reply.
        prompt_tokens: length of the prompt in tokens.
        finish_reason: ``"stop"`` (the model or a stop text ended it, or what was asked of it is
            complete), ``"length"`` (max_tokens),
            ``"context"`` (no room left), ``"memory"`` (none left for keys and values),
            ``"cancelled"`` (closed early), ``"error"``, ``""`` while it runs.
        error: what went wrong, or None.
        stats: timings.
        logprobs: how likely the model held each of ``ids``, if that was asked for; else empty.
        tool_calls: calls of functions that the reply asks for, as far as they came.
        thinking: what the model thought before it answered, in chats with models that mark it.
        thinking_tokens: how many of ``ids`` are thoughts, with what ends them.
        answers_first: text came before any thought.
        stop_text: which stop text ended it; None where something else did.
    """

    text: str = ""
    ids: list[int] = field(default_factory=list)
    prompt_tokens: int = 0
    finish_reason: str = ""
    error: Exception | None = None
    stats: Stats = field(default_factory=Stats)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    tool_calls: list[ToolCall] = field(default_factory=list)
    thinking: str = ""
    thinking_tokens: int = 0
    answers_first: bool = False
    stop_text: str | None = None

    @property
    def message(self) -> dict[str, Any]:
        """The reply as a message, with which a conversation goes on."""
        calls = [
            {
                "id": call.id,
                "type": "function",
                "function": {"name": call.name, "arguments": call.arguments},
            }
            for call in self.tool_calls
        ]
        message: dict[str, Any] = {"role": "assistant", "content": self.text}
        if self.thinking:
            message["reasoning_content"] = self.thinking
        return {**message, "tool_calls": calls} if calls else message

    def __str__(self) -> str:
        return self.text

    def __repr__(self) -> str:
        return (
            f"Completion({reprlib.repr(self.text)}, {len(self.ids)} tokens after "
            f"{self.prompt_tokens}, finish_reason={self.finish_reason!r})"
        )


class Writer:
    """Writes a completion down, token by token."""

    def __init__(
        self,
        completion: Completion,
        decoder: Any,
        stop: tuple[str, ...],
        reader: ReplyReader | None = None,
    ) -> None:
        """Begins.

        Args:
            completion: to be written.
            decoder: a tokenizer's stream decoder.
            stop: what ends the text; in thoughts and calls it is not looked for.
            reader: takes what is decoded apart; None where all of it is text.
        """
        self.completion = completion
        self._decoder = decoder
        self._stop = StopText(stop)
        self._reader = reader

    def push(self, token: Token) -> Part:
        """Takes a token; returns what is certain now, often nothing.

        The completion has a ``finish_reason`` when this was the last one.
        """
        part = Part()
        if token.finish_reason != "stop":
            if token.logprob is not None:  # ``write`` drops it if Ctrl-C comes before the id
                self.completion.logprobs.append(token.logprob)
            self.completion.ids.append(token.id)
            decoded, thinks = self._decoder.push(token.id), self._thinks
            part = self._written(self._reader.push(decoded) if self._reader else [decoded])
            self.completion.thinking_tokens += thinks or self._thinks
        if self._stop.stopped:
            self.completion.finish_reason = "stop"
        elif token.finish_reason:
            rest = self.finish(token.finish_reason)
            part = Part(part.text + rest.text, part.thinking + rest.thinking)
        return part

    def finish(self, reason: FinishReason) -> Part:
        """Ends the completion; returns the rest of it."""
        decoded = self._decoder.finish()
        rest: Iterable[Event] = [decoded]
        if self._reader:
            rest = (*self._reader.push(decoded), *self._reader.finish())
        text, thinking = self._written(rest)
        end = self._stop.finish()
        self.completion.text += end
        self.completion.finish_reason = "stop" if self._stop.stopped else reason
        return Part(text + end, thinking)

    def _written(self, events: Iterable[Event]) -> Part:
        """Writes thoughts, text and calls down, up to a stop text; returns the first two."""
        completion, text, thinking = self.completion, "", ""
        for event in events:
            if self._stop.stopped:
                break
            if isinstance(event, str):
                text += self._stop.push(event)
            elif isinstance(event, Thought):
                thinking += event.text
            else:
                completion.tool_calls.append(event)
            completion.answers_first |= bool(text) and not (completion.thinking or thinking)
        completion.stop_text = self._stop.ended_by
        completion.text += text
        completion.thinking += thinking
        return Part(text, thinking)

    @property
    def _thinks(self) -> bool:
        return self._reader is not None and self._reader.is_thinking


def write(
    engine: Engine,
    sequence: Sequence,
    writer: Writer,
    ended: Callable[[Completion], None] = lambda completion: None,
) -> Generator[Part, None, None]:
    """Yields what is certain after each token, often nothing; ``ended`` is called at the end."""
    completion, tokens = writer.completion, engine.tokens(sequence)
    try:
        for token in tokens:
            yield writer.push(token)
            if completion.finish_reason:
                return
        if sequence.finish_reason:  # it ended without one more
            yield writer.finish(sequence.finish_reason)
    except Exception as error:
        completion.error, completion.finish_reason = error, "error"
        raise
    finally:
        del completion.logprobs[len(completion.ids) :]
        tokens.close()
        completion.stats.completion_tokens = len(completion.ids)  # others were never read
        completion.finish_reason = completion.finish_reason or "cancelled"
        ended(completion)
