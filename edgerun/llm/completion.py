"""Replies: sampled tokens become text, stop texts end it."""

from __future__ import annotations

import reprlib
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from edgerun.engine.chooser.logprobs import TokenLogprob
from edgerun.engine.engine import Engine
from edgerun.engine.sequence import FinishReason, Sequence, Token
from edgerun.engine.stats import Stats
from edgerun.errors import InputError
from edgerun.model.chat.thinking.reader import Thought
from edgerun.model.text.stop_text import StopText
from edgerun.state.fair_lock import FairLock
from edgerun.values import shown

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


class Parts(Iterator[Part], AsyncIterator[Part]):
    """Text and thoughts of a stream, read in a thread or in a coroutine."""

    def __init__(self, read: Callable[[], Part], awaited: Callable[[], Awaitable[Part]]) -> None:
        """Made by ``TextStream.parts``."""
        self._read, self._awaited = read, awaited

    def __next__(self) -> Part:
        return self._read()

    async def __anext__(self) -> Part:
        return await self._awaited()


class TextStream:
    """Pieces of a reply as they are generated; ``completion`` holds what came so far.

    What the model thinks is no piece of the reply; ``parts`` has it, and the completion. Closing
    the stream, or leaving its ``with`` block, ends the generation, as does forgetting it. Another
    thread may close it while one reads; the reader then gets no further piece. A coroutine reads
    it by ``async for`` in an ``async with`` block, or awaits the whole reply.
    """

    def __init__(
        self,
        engine: Engine,
        sequence: Sequence,
        parts: Generator[Part, None, None],
        completion: Completion,
    ) -> None:
        """Made by ``LLM.stream`` and its kin."""
        self._engine, self._sequence, self._parts = engine, sequence, parts
        self._lock = FairLock()
        self._reading = False
        self._closing = False
        self._fetched: deque[Part | Exception] = deque()
        self.completion = completion

    def __iter__(self) -> TextStream:
        return self

    def __next__(self) -> str:
        while not (text := self._lock.run(self._next).text):
            pass
        return text

    def parts(self) -> Parts:
        """What comes, piece by piece: what the model thinks, and then its answer.

        Returns:
            an iterator for ``for`` and for ``async for``, with something in each ``Part``.

        Example:
            >>> for text, thinking in llm.stream_chat(messages).parts():  # doctest: +SKIP
            ...     print(thinking or text, end="")
        """
        return Parts(lambda: self._lock.run(self._next), self._awaited)

    def __enter__(self) -> TextStream:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __aiter__(self) -> TextStream:
        return self

    async def __anext__(self) -> str:
        while not (text := (await self._awaited()).text):
            pass
        return text

    async def _awaited(self) -> Part:
        while not self._fetched:  # again if another task has taken what came
            await _in_thread(self._lock.run, self._fetch)
        part = self._fetched.popleft()
        if isinstance(part, Exception):
            raise part
        return part

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

    def _fetch(self) -> None:
        """Keeps what comes next for whoever awaits it: a task may be cancelled while it waits."""
        try:
            self._fetched.append(self._next())
        except StopIteration:
            self._fetched.append(StopAsyncIteration())
        except Exception as error:
            self._fetched.append(error)

    def _next(self) -> Part:
        if self._closing:
            self._close()
        self._reading = True
        try:
            while not any(part := next(self._parts)):
                pass
            return part
        finally:
            self._reading = False

    def _close(self) -> None:
        if self._reading:  # a signal handler of the thread that reads: it ends with its next piece
            return
        self._parts.close()
        self._engine.cancel(self._sequence)  # the parts do, if there was one
        self.completion.finish_reason = self.completion.finish_reason or "cancelled"

    def _came(self) -> Part:
        """What came since the last call, without waiting; nothing too if it failed."""
        text = thinking = ""
        while self._sequence.is_ready and not self.completion.finish_reason:
            try:
                part = next(self._parts, Part())
            except Exception as error:
                if self.completion.error is not error:  # else nobody has lost it
                    raise
                break
            text, thinking = text + part.text, thinking + part.thinking
        if self.completion.finish_reason:
            self._close()
        return Part(text, thinking)


def together(
    engine: Engine, streams: Iterable[TextStream]
) -> Generator[tuple[int, str], None, None]:
    """Yields ``(index of the stream, piece)`` as pieces come; see ``LLM.together``."""
    everyone = _listed(streams)
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


def _listed(streams: Any) -> list[Any]:
    if isinstance(streams, Iterable) and not isinstance(streams, TextStream):
        with suppress(TypeError):  # an array without dimensions
            return list(streams)
    raise InputError(f"streams is {shown(streams)}; expected a list of what 'stream' returns")


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
                piece = stream._lock.run(stream._came).text
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
