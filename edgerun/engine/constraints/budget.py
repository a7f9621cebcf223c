"""Thoughts of bounded length: when the budget is spent, the ids that lead to the answer come."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from edgerun.engine.chooser.processor import Filter, Processor
from edgerun.engine.constraints.later import Progress
from edgerun.model.chat.thinking.form import AnswerStart

if TYPE_CHECKING:
    from edgerun.engine.chooser.candidates import Candidates


@dataclass(frozen=True)
class ThinkingBudget(Processor):
    """Has a model answer after so many tokens.

    Attributes:
        start: where its answer begins.
        tokens: most tokens of a reply before those that lead there.
    """

    order: ClassVar[int] = 4
    callers_only: ClassVar[bool] = True
    start: AnswerStart
    tokens: int

    @property
    def is_active(self) -> bool:
        return True

    def begin(self, prompt: Sequence[int], vocab_size: int) -> Filter:
        return _BudgetFilter(self.start, self.tokens)


class _BudgetFilter:
    """Counts what a sequence thinks."""

    def __init__(self, start: AnswerStart, tokens: int) -> None:
        self._progress, self._tokens = Progress(start), tokens
        # Where nothing may be thought, no message has begun that would have to end.
        at_once = (*start.heading, start.closing) if start.heading else start.leading
        self._leading = start.leading if tokens else at_once

    def accept(self, id_: int) -> None:
        self._progress.accept(id_)

    def undo(self, id_: int) -> None:
        self._progress.undo()

    def apply(self, candidates: Candidates) -> Candidates:
        progress = self._progress
        is_spent = progress.begin is None and len(progress.ids) >= self._tokens
        if not is_spent or progress.may_answer:
            return candidates
        place, _ = candidates.places(np.array([self._next()]))
        return candidates.take(place) if len(place) else candidates

    def _next(self) -> int:
        """The id that leads on to the answer."""
        ids, leading = self._progress.ids, self._leading
        for count in range(min(len(leading) - 1, len(ids) - self._tokens), 0, -1):
            if tuple(ids[-count:]) == leading[:count]:
                return leading[count]
        return leading[0]
