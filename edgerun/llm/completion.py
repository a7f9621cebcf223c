"""Replies: sampled tokens become text, stop texts end it."""

from __future__ import annotations

import reprlib
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from typing import Any

from edgerun.engine.engine import Step
from edgerun.engine.stats import Stats
from edgerun.model.text.stop_text import StopText
from edgerun.state.fair_lock import FairLock


@dataclass(slots=True, repr=False)
class Completion:
    """A reply.

    Attributes:
        text: the reply without stop texts and control tokens.
        ids: the generated ids, without the one that ended the reply.
        prompt_tokens: length of the prompt in tokens.
        finish_reason: ``"stop"`` (the model or a stop text ended it), ``"length"`` (max_tokens),
            ``"context"`` (no room left), ``"cancelled"`` (closed early), ``""`` while it runs.
        stats: timings.
    """

    text: str = ""
    ids: list[int] = field(default_factory=list)
    prompt_tokens: int = 0
    finish_reason: str = ""
    stats: Stats = field(default_factory=Stats)

    def __str__(self) -> str:
        return self.text

    def __repr__(self) -> str:
        return (
            f"Completion({reprlib.repr(self.text)}, {len(self.ids)} tokens after "
            f"{self.prompt_tokens}, finish_reason={self.finish_reason!r})"
        )


class Writer:
    """Writes a completion down, step by step."""

    def __init__(self, completion: Completion, decoder: Any, stop: tuple[str, ...]) -> None:
        """Begins; ``decoder`` is a tokenizer's stream decoder, ``stop`` what ends the text."""
        self.completion = completion
        self._decoder = decoder
        self._stop = StopText(stop)

    def push(self, step: Step) -> str:
        """Takes a token; returns the text that is certain now, often ``""``.

        The completion has a ``finish_reason`` when this was the last one.
        """
        completion, stop = self.completion, self._stop
        text = ""
        if step.finish_reason != "stop":
            completion.ids.append(step.id)
            text = stop.push(self._decoder.push(step.id))
        if step.finish_reason and not stop.stopped:
            text += stop.push(self._decoder.finish()) + stop.finish()
        completion.text += text
        completion.finish_reason = "stop" if stop.stopped else step.finish_reason or ""
        return text


class TextStream:
    """Pieces of a reply as they are generated; ``completion`` holds what came so far.

    Closing it, or leaving its ``with`` block, ends the generation, as does forgetting it. Another
    thread may close it while one reads; the reader then gets no further piece.
    """

    def __init__(self, pieces: Generator[str, None, None], completion: Completion) -> None:
        """Made by ``LLM.stream`` and its kin."""
        self._pieces = pieces
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

    def __repr__(self) -> str:
        return f"<TextStream: {self.completion!r}>"

    def close(self) -> None:
        """Ends the generation; what was generated stays usable."""
        self._closing = True  # for a thread that comes before this one
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
            return next(self._pieces)
        finally:
            self._reading = False

    def _close(self) -> None:
        if self._reading:  # a signal handler of the thread that reads: it ends with its next piece
            return
        self._pieces.close()
        self.completion.finish_reason = self.completion.finish_reason or "cancelled"


def write(
    steps: Any, writer: Writer, ended: Callable[[Completion], None] = lambda completion: None
) -> Generator[str, None, None]:
    """Turns an engine's steps into pieces of text; ``ended`` is called once, however it ends."""
    completion = writer.completion
    try:
        for step in steps:
            text = writer.push(step)
            if text:
                yield text
            if completion.finish_reason:
                return
    finally:
        steps.close()
        completion.finish_reason = completion.finish_reason or "cancelled"
        ended(completion)
