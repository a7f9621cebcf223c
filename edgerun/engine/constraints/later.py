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


class _AnswerFilter:
    """Lets a sequence think; a reply does not end before its answer has begun."""

    def __init__(self, inner: EndingFilter, start: AnswerStart, vocab_size: int) -> None:
        self._inner, self._start, self._vocab_size = inner, start, vocab_size
        self._ids: list[int] = []
        self._begin: int | None = None  # number of ids before the answer, once it has begun
        self._stop_ids = np.zeros(0, np.int64)

    def end_with(self, stop_ids: Iterable[int]) -> None:
        ids = sorted(id_ for id_ in stop_ids if id_ < self._vocab_size)
        self._stop_ids = np.array(ids, np.int64)
        self._inner.end_with(ids)

    def is_complete(self) -> bool:
        return self._begin is not None and self._inner.is_complete()

    def accept(self, id_: int) -> None:
        opening = self._start.opening
        if self._begin is None and not self._ids and opening is not None and id_ != opening:
            self._begin = 0
        self._ids.append(id_)
        if self._begin is not None:
            self._inner.accept(id_)
        elif self._start.is_reached(self._ids):
            self._begin = len(self._ids)

    def undo(self, id_: int) -> None:
        if self._begin is not None and len(self._ids) > self._begin:
            self._inner.undo(id_)
        self._ids.pop()
        if self._begin is not None and (len(self._ids) < self._begin or not self._ids):
            self._begin = None

    def apply(self, candidates: Candidates) -> Candidates:
        if self._begin is not None:
            return self._inner.apply(candidates)
        opening = self._start.opening
        if self._ids or opening is None:
            candidates.logits[candidates.places(self._stop_ids)[0]] = -np.inf
            return candidates
        place, _ = candidates.places(np.array([opening]))
        logits = candidates.logits[place]
        candidates = self._inner.apply(candidates)
        candidates.logits[place] = logits
        return candidates
