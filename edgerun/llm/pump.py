"""A thread that reads streams of one model, for callers that must not wait, such as servers."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from edgerun.engine.sequence import Sequence
from edgerun.errors import InputError
from edgerun.llm.replies.completion import Part
from edgerun.llm.replies.stream import TextStream

if TYPE_CHECKING:
    from edgerun.llm.llm import LLM


INTERVAL_S = 0.02
LONGEST_INTERVAL_S = 0.1
MANY = 4  # streams from which on an interval is longer, in proportion


class Piece(NamedTuple):
    """What came of a stream.

    Attributes:
        stream: whose completion goes on growing meanwhile.
        part: what is new of it; nothing at the end of some, in the middle of none.
        tokens: how many ids its completion had.
        is_last: whether the completion has its finish reason, and nothing will come.
    """

    stream: TextStream
    part: Part
    tokens: int
    is_last: bool


class _Reading:
    """A stream that is read.

    Attributes:
        stream: the stream.
        part: that came and was not handed over.
        is_last: whether nothing will come.
    """

    def __init__(self, stream: TextStream) -> None:
        self.stream, self.part, self.is_last = stream, Part(), False
        self._has_begun = False

    def read(self) -> bool:
        """Takes what is there; whether that should be handed over at once."""
        with suppress(Exception):  # which its completion has
            part, came = self.part, self.stream._lock.run(self.stream._came)
            self.part = Part(part.text + came.text, part.thinking + came.thinking)
        self.is_last = bool(self.stream.completion.finish_reason)
        begins = any(self.part) and not self._has_begun
        self._has_begun |= begins
        return begins or self.is_last

    def piece(self) -> Piece:
        """What is to be handed over."""
        part, self.part = self.part, Part()
        return Piece(self.stream, part, len(self.stream.completion.ids), self.is_last)


class Pump:
    """Reads streams of one model together, whenever they come, and hands over their pieces.

    Each call of the model serves all streams, and what came is handed over together: at once what
    begins or ends a stream, all else at intervals, for handing over takes longer than a token of a
    small model, and from the same processor. A stream that fails ends alone, with the ``error`` of
    its completion.
    """

    def __init__(self, llm: LLM, deliver: Callable[[list[Piece]], None]) -> None:
        """Starts the thread.

        Args:
            llm: whose streams these are.
            deliver: called in the thread with what came; it should return at once. An exception
                ends the thread as any thread, all streams, and what could be added.
        """
        llm.tokenizer.read_spellings(llm.model.vocab_size)  # lest all wait for one's long prompt
        self._engine, self._deliver = llm._engine, deliver
        self._running: dict[Sequence, _Reading] = {}
        self._joining: list[TextStream] = []
        self._changed = threading.Condition()
        self._is_closed = False
        self._handed_over = 0.0
        self._thread = threading.Thread(target=self._run, name="edgerun-pump", daemon=True)
        self._thread.start()

    def add(self, streams: Iterable[TextStream]) -> None:
        """Begins to read streams, which nobody else reads; never waits for the model.

        Raises:
            InputError: the pump was closed, or a stream is another model's.
        """
        joining = list(streams)
        if any(stream._engine is not self._engine for stream in joining):
            raise InputError("a stream is another model's: a pump reads those of its own")
        with self._changed:
            if self._is_closed:
                raise InputError("this model is no longer served")
            self._joining += joining
            self._changed.notify()

    def cancel(self, stream: TextStream) -> None:
        """Ends a stream soon; its last piece comes as ever. Never waits for the model."""
        self._engine.cancel(stream._sequence)

    def close(self) -> None:
        """Ends all streams, hands over their last pieces, and ends the thread."""
        with self._changed:
            self._is_closed = True
            self._changed.notify()
        self._thread.join()

    def _run(self) -> None:
        try:
            self._pump()
        finally:  # also if what came could not be handed over: nobody else would, so none is taken
            with self._changed:
                self._is_closed = True
                left, self._joining = [*self._joining, *self._streams()], []
            for stream in left:
                self.cancel(stream)

    def _streams(self) -> list[TextStream]:
        return [reading.stream for reading in self._running.values()]

    def _pump(self) -> None:
        while self._join():
            try:
                ready = self._engine.advance(list(self._running))
            except Exception as error:  # a defect, or the model was closed: no call can be made
                ready = list(self._running)
                for reading in self._running.values():
                    self.cancel(reading.stream)
                    completion = reading.stream.completion
                    completion.error, completion.finish_reason = error, "error"
            self._hand_over(ready)

    def _join(self) -> bool:
        """Waits until there is something to read; False when there never will be."""
        with self._changed:
            while not (self._joining or self._running or self._is_closed):
                self._changed.wait()
            joining, self._joining = self._joining, []
        for stream in joining:
            self._running[stream._sequence] = _Reading(stream)
            self._engine.add(stream._sequence)
        if self._is_closed:
            for stream in self._streams():
                self.cancel(stream)
        return bool(self._running)

    def _hand_over(self, ready: list[Sequence]) -> None:
        now = time.monotonic()
        interval = INTERVAL_S * max(1, len(self._running) / MANY)
        is_due = now - self._handed_over >= min(interval, LONGEST_INTERVAL_S)
        for sequence in ready:
            is_due |= self._running[sequence].read()
        if not is_due:
            return
        pieces = [each.piece() for each in self._running.values() if any(each.part) or each.is_last]
        for piece in pieces:
            if piece.is_last:
                del self._running[piece.stream._sequence]
        if pieces:
            self._handed_over = now
            self._deliver(pieces)
