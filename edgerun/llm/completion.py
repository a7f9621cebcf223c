"""Replies: sampled tokens become text, stop texts end it."""

from __future__ import annotations

import reprlib
from collections.abc import Callable, Generator, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from edgerun.engine.chooser.logprobs import TokenLogprob
from edgerun.engine.engine import Engine
from edgerun.engine.sequence import FinishReason, Sequence, Token
from edgerun.engine.stats import Stats
from edgerun.errors import EdgerunError, InputError
from edgerun.model.text.stop_text import StopText
from edgerun.state.fair_lock import FairLock
from edgerun.values import shown

if TYPE_CHECKING:
    from edgerun.model.chat.tools.call import ToolCall
    from edgerun.model.chat.tools.reader import CallReader, Event


@dataclass(slots=True, repr=False)
class Completion:
    """A reply.

    Attributes:
        text: the reply without stop texts, control tokens and calls.
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
    """

    text: str = ""
    ids: list[int] = field(default_factory=list)
    prompt_tokens: int = 0
    finish_reason: str = ""
    error: Exception | None = None
    stats: Stats = field(default_factory=Stats)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    tool_calls: list[ToolCall] = field(default_factory=list)

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
        calls: CallReader | None = None,
    ) -> None:
        """Begins.

        Args:
            completion: to be written.
            decoder: a tokenizer's stream decoder.
            stop: what ends the text; in calls it is not looked for.
            calls: reads calls out of what is decoded; None where there are none.
        """
        self.completion = completion
        self._decoder = decoder
        self._stop = StopText(stop)
        self._calls = calls

    def push(self, token: Token) -> str:
        """Takes a token; returns the text that is certain now, often ``""``.

        The completion has a ``finish_reason`` when this was the last one.
        """
        text = ""
        if token.finish_reason != "stop":
            if token.logprob is not None:  # ``write`` drops it if Ctrl-C comes before the id
                self.completion.logprobs.append(token.logprob)
            self.completion.ids.append(token.id)
            decoded = self._decoder.push(token.id)
            text = self._written(self._calls.push(decoded) if self._calls else [decoded])
        if self._stop.stopped:
            self.completion.finish_reason = "stop"
        elif token.finish_reason:
            text += self.finish(token.finish_reason)
        return text

    def finish(self, reason: FinishReason) -> str:
        """Ends the completion; returns the rest of its text."""
        decoded = self._decoder.finish()
        rest: Iterable[Event] = [decoded]
        if self._calls:
            rest = (*self._calls.push(decoded), *self._calls.finish())
        text = self._written(rest)
        end = self._stop.finish()
        self.completion.text += end
        self.completion.finish_reason = "stop" if self._stop.stopped else reason
        return text + end

    def _written(self, events: Iterable[Event]) -> str:
        """Writes text and calls down, up to a stop text; returns the text."""
        text = ""
        for event in events:
            if self._stop.stopped:
                break
            if isinstance(event, str):
                text += self._stop.push(event)
            else:
                self.completion.tool_calls.append(event)
        self.completion.text += text
        return text


def write(
    engine: Engine,
    sequence: Sequence,
    writer: Writer,
    ended: Callable[[Completion], None] = lambda completion: None,
) -> Generator[str, None, None]:
    """Yields what is certain after each token, often ``""``; ``ended`` is called at the end."""
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


class TextStream:
    """Pieces of a reply as they are generated; ``completion`` holds what came so far.

    Closing it, or leaving its ``with`` block, ends the generation, as does forgetting it. Another
    thread may close it while one reads; the reader then gets no further piece. A coroutine reads
    it by ``async for`` in an ``async with`` block, or awaits the whole reply.
    """

    def __init__(
        self,
        engine: Engine,
        sequence: Sequence,
        pieces: Generator[str, None, None],
        completion: Completion,
    ) -> None:
        """Made by ``LLM.stream`` and its kin."""
        self._engine, self._sequence, self._pieces = engine, sequence, pieces
        self._lock = FairLock()
        self._reading = False
        self._closing = False
        self.completion = completion

    def __iter__(self) -> TextStream:
        return self

    def __next__(self) -> str:
        return self._lock.run(self._next)

    def __enter__(self) -> TextStream:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __aiter__(self) -> TextStream:
        return self

    async def __anext__(self) -> str:
        piece: str = await _in_thread(next, self, "")  # no piece is empty
        if not piece:
            raise StopAsyncIteration
        return piece

    async def __aenter__(self) -> TextStream:
        return self

    async def __aexit__(self, *_: object) -> None:
        await _in_thread(self.close)

    def __await__(self) -> Generator[Any, None, Completion]:
        """Runs to the end and returns the whole reply."""
        return self._whole().__await__()

    async def _whole(self) -> Completion:
        async with self:
            async for _ in self:
                pass
        return self.completion

    def __repr__(self) -> str:
        return f"<TextStream: {self.completion!r}>"

    def close(self) -> None:
        """Ends the generation; what was generated stays usable."""
        self._closing = True  # for a thread that comes before this one
        self._engine.cancel(self._sequence)  # for one that waits for its next token
        self._lock.run(self._close)

    def result(self) -> Completion:
        """Runs to the end and returns the whole reply."""
        with self:
            for _ in self:
                pass
        return self.completion

    def _next(self) -> str:
        if self._closing:
            self._close()
        self._reading = True
        try:
            while not (piece := next(self._pieces)):
                pass
            return piece
        finally:
            self._reading = False

    def _close(self) -> None:
        if self._reading:  # a signal handler of the thread that reads: it ends with its next piece
            return
        self._pieces.close()
        self._engine.cancel(self._sequence)  # the pieces do, if there was one
        self.completion.finish_reason = self.completion.finish_reason or "cancelled"

    def _came(self) -> str:
        """What came since the last call, without waiting; ``""`` too if it failed."""
        text = ""
        while self._sequence.is_ready and not self.completion.finish_reason:
            try:
                text += next(self._pieces, "")
            except EdgerunError:  # which its completion has
                break
        if self.completion.finish_reason:
            self._close()
        return text


def together(
    engine: Engine, streams: Iterable[TextStream]
) -> Generator[tuple[int, str], None, None]:
    """Yields ``(index of the stream, piece)`` as pieces come; see ``LLM.together``."""
    given: Any = streams
    everyone = list(given) if isinstance(given, Iterable) else [given]
    for stream in everyone:
        if not isinstance(stream, TextStream):
            raise InputError(f"{shown(stream)} is no stream; expected what 'stream' returns")
        if stream._engine is not engine:
            raise InputError(
                "a stream is another model's: run streams together on the model of all"
            )
    pieces = _together(engine, everyone)
    next(pieces)  # to where closing it closes the streams
    return pieces


def _together(engine: Engine, everyone: list[TextStream]) -> Generator[tuple[int, str], None, None]:
    """As ``together``, after a first piece that is none."""
    running: dict[Sequence, tuple[int, TextStream]] = {}
    for index, stream in enumerate(everyone):
        if not stream.completion.finish_reason:
            running.setdefault(stream._sequence, (index, stream))
    try:
        yield -1, ""
        for sequence in running:
            engine.add(sequence)
        while running:
            for sequence in engine.wait(list(running)):
                index, stream = running[sequence]
                piece = stream._lock.run(stream._came)
                if stream.completion.finish_reason:
                    del running[sequence]
                if piece:
                    yield index, piece
    finally:
        for stream in everyone:
            stream.close()


async def _in_thread(function: Callable[..., Any], *arguments: Any) -> Any:
    from asyncio import to_thread

    return await to_thread(function, *arguments)
