"""A grammar that counts for the answer alone: what a model thinks before it is free."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from edgerun.engine.chooser.processor import EndingFilter, Filter, Processor
from edgerun.model.chat.thinking.form import AnswerStart

if TYPE_CHECKING:
    from edgerun.engine.chooser.candidates import Candidates
    from edgerun.engine.chooser.vocabulary import Vocabulary


@dataclass(frozen=True)
class ForAnswer(Processor):
    """What a processor does, from the beginning of the answer on.

    Attributes:
        inner: the processor, one that says what a reply looks like.
        start: where the answer begins.
    """

    order: ClassVar[int] = 5
    callers_only: ClassVar[bool] = True
    shapes_text: ClassVar[bool] = True
    inner: Processor
    start: AnswerStart

    @property
    def is_active(self) -> bool:
        return self.inner.is_active

    def with_vocabulary(self, vocabulary: Vocabulary) -> ForAnswer:
        return replace(self, inner=self.inner.with_vocabulary(vocabulary))

    def begin(self, prompt: Sequence[int], vocab_size: int) -> Filter:
        filter_ = self.inner.begin(prompt, vocab_size)
        assert isinstance(filter_, EndingFilter)
        return _AnswerFilter(filter_, self.start, vocab_size)


class Progress:
    """How far a sequence is.

    Attributes:
        ids: of the reply.
        begin: how many ids are before the answer, once it has begun.
    """

    def __init__(self, start: AnswerStart) -> None:
        """Begins a reply whose answer begins there."""
        self.start = start
        self.ids: list[int] = []
        self.begin: int | None = None

    @property
    def may_answer(self) -> bool:
        """Whether the next id says if there is a thought at all."""
        return not self.ids and self.start.opening is not None

    def accept(self, id_: int) -> bool:
        """Takes the next id; whether it belongs to the answer."""
        if self.may_answer and id_ != self.start.opening:
            self.begin = 0
        self.ids.append(id_)
        if self.begin is None and self.start.is_reached(self.ids):
            self.begin = len(self.ids)
        return self.begin is not None and len(self.ids) > self.begin

    def undo(self) -> bool:
        """Takes the last id back; whether it belonged to the answer."""
        belonged = self.begin is not None and len(self.ids) > self.begin
        self.ids.pop()
        if self.begin is not None and (len(self.ids) < self.begin or not self.ids):
            self.begin = None
        return belonged


class _AnswerFilter:
    """Lets a sequence think; a reply does not end before its answer has begun."""

    def __init__(self, inner: EndingFilter, start: AnswerStart, vocab_size: int) -> None:
        self._inner, self._progress, self._vocab_size = inner, Progress(start), vocab_size
        self._stop_ids = np.zeros(0, np.int64)

    def end_with(self, stop_ids: Iterable[int]) -> None:
        ids = sorted(id_ for id_ in stop_ids if id_ < self._vocab_size)
        self._stop_ids = np.array(ids, np.int64)
        self._inner.end_with(ids)

    def is_complete(self) -> bool:
        return self._progress.begin is not None and self._inner.is_complete()

    def accept(self, id_: int) -> None:
        if self._progress.accept(id_):
            self._inner.accept(id_)

    def undo(self, id_: int) -> None:
        if self._progress.undo():
            self._inner.undo(id_)

    def apply(self, candidates: Candidates) -> Candidates:
        if self._progress.begin is not None:
            return self._inner.apply(candidates)
        if not self._progress.may_answer:
            candidates.logits[candidates.places(self._stop_ids)[0]] = -np.inf
            return candidates
        place, _ = candidates.places(np.array([self._progress.start.opening]))
        logits = candidates.logits[place]
        candidates = self._inner.apply(candidates)
        candidates.logits[place] = logits
        return candidates
