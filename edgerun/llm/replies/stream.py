"""Replies as they come: to threads, to coroutines, and several together."""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Iterable, Iterator
from contextlib import suppress
from typing import Any

from edgerun.engine.engine import Engine
from edgerun.engine.sequence import Sequence
from edgerun.errors import InputError
from edgerun.llm.replies.completion import Completion, Part
from edgerun.state.fair_lock import FairLock
from edgerun.values import shown


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
        *,
        continues: bool = False,
    ) -> None:
        """Made by ``LLM.stream`` and its kin.

        Args:
            engine: computes it.
            sequence: of its tokens.
            parts: text and thoughts of it.
            completion: is written as they are read.
            continues: as for ``Tokenizer.stream``, for who decodes its tokens once more.
        """
        self._engine, self._sequence, self._parts = engine, sequence, parts
        self._lock = FairLock()
        self._reading = False
        self._closing = False
        self._fetched: deque[Part | Exception] = deque()
        self.completion = completion
        self.continues = continues

    def __iter__(self) -> TextStream:
        return self

    def __next__(self) -> str:
        while not (text := self._lock.run(self._read).text):
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
        return Parts(lambda: self._lock.run(self._read), self._awaited)

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
        reader = object()
        self._engine.readers.begin(reader, [self._sequence])
        try:
            while not self._fetched:  # again if nothing came, or another task has taken it
                await _in_thread(self._lock.run, self._fetch)
        finally:
            self._engine.readers.end(reader)
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
            if not self._is_to_come():
                self._fetched.append(self._next())
        except StopIteration:
            self._fetched.append(StopAsyncIteration())
        except Exception as error:
            self._fetched.append(error)

    def _read(self) -> Part:
        """The next part: what was fetched for a task that was cancelled, or one that comes."""
        while self._fetched and not self._closing:
            part = self._fetched.popleft()
            if isinstance(part, Part):
                return part
            if not isinstance(part, StopAsyncIteration):
                raise part
        return self._next()

    def _is_to_come(self) -> bool:
        """Whether there is nothing yet, even after a call of the model.

        The loop's pool has few threads: one that waited longer would keep them from whose replies
        have come, and from all else that needs them.
        """
        if self._closing:
            return False
        if not self._sequence.is_added:
            self._engine.add(self._sequence)
        with suppress(Exception):  # which comes again where the completion learns of it
            return not self._engine.advance([self._sequence])
        return False

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
