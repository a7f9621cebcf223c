"""Thoughts of bounded length: when the budget is spent, the ids that lead to the answer come."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from edgerun.engine.chooser.processor import Filter, Processor
from edgerun.engine.constraints.later import THOUGHT, Progress
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
    """Counts what a sequence thinks; what stands before a message is not interrupted."""

    def __init__(self, start: AnswerStart, tokens: int) -> None:
        self._progress, self._tokens = Progress(start, skips_blanks=True), tokens

    def accept(self, id_: int) -> None:
        self._progress.accept(id_)

    def undo(self, id_: int) -> None:
        self._progress.undo()

    def apply(self, candidates: Candidates) -> Candidates:
        next_ = self._next()
        if next_ is None:
            return candidates
        place, _ = candidates.places(np.array([next_]))
        return candidates.take(place) if len(place) else candidates

    def _next(self) -> int | None:
        """The id that leads on to the answer; None where the model goes its own way.

        That is so with what it began before the budget was spent.
        """
        state = self._progress.state
        if self._progress.count - state.done < self._tokens:
            return None
        paths = self._progress.start.ways if state.stage == THOUGHT else state.paths
        return next((path.ids[state.done] for path in paths if path.answers), None)
