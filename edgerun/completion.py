"""Replies: sampled tokens become text, stop texts end it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from edgerun.engine.engine import Step
from edgerun.engine.stats import Stats
from edgerun.model.stop_text import StopText


@dataclass(slots=True)
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

    Closing it, or leaving its ``with`` block, ends the generation.
    """

    def __init__(self, pieces: Iterator[str], completion: Completion) -> None:
        """Made by ``LLM.stream`` and its kin."""
        self._pieces = pieces
        self.completion = completion

    def __iter__(self) -> TextStream:
        return self

    def __next__(self) -> str:
        return next(self._pieces)

    def __enter__(self) -> TextStream:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends the generation; what was generated stays usable."""
        close = getattr(self._pieces, "close", None)
        if close:
            close()

    def result(self) -> Completion:
        """Runs to the end and returns the whole reply."""
        for _ in self:
            pass
        return self.completion


def write(
    steps: Any, writer: Writer, ended: Callable[[Completion], None] = lambda completion: None
) -> Iterator[str]:
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
