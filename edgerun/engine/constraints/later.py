"""A grammar that counts for the answer alone: what a model thinks before it is free."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from edgerun.engine.chooser.processor import EndingFilter, Filter, Processor
from edgerun.model.chat.thinking.form import AnswerStart, Path

if TYPE_CHECKING:
    from edgerun.engine.chooser.candidates import Candidates
    from edgerun.engine.chooser.vocabulary import Vocabulary


# Before anything came, or on the way to a first thought; on the way out of a thought; and so on.
BEGINNING, WAY, THOUGHT, ANSWER = "beginning", "way", "thought", "answer"


class State(NamedTuple):
    """Where a sequence is.

    Attributes:
        stage: the stage.
        paths: that it may be on.
        done: how many of their ids came.
        just_reached: the last id led to the answer, and is no part of it.
    """

    stage: str
    paths: tuple[Path, ...] = ()
    done: int = 0
    just_reached: bool = False

    def next_ids(self) -> NDArray[np.int64]:
        """Ids by which a path goes on, increasing."""
        return np.array(sorted({path.ids[self.done] for path in self.paths}), np.int64)


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
        start: how it comes to its answer.
    """

    def __init__(self, start: AnswerStart, *, skips_blanks: bool) -> None:
        """Begins a reply; ``skips_blanks`` where blanks before a thought say nothing."""
        self.start, self._blanks = start, start.blanks if skips_blanks else frozenset[int]()
        begin = THOUGHT if start.begun else BEGINNING
        self._states: list[State] = [State(begin, () if start.begun else start.beginnings, 0)]

    @property
    def count(self) -> int:
        """Ids so far."""
        return len(self._states) - 1

    @property
    def state(self) -> State:
        """Where it is."""
        return self._states[-1]

    def accept(self, id_: int) -> bool:
        """Takes the next id; whether it belongs to the answer."""
        before = self.state
        self._states.append(self._behind(before, id_))
        return self.state.stage == ANSWER and not self.state.just_reached

    def undo(self) -> bool:
        """Takes the last id back; whether it belonged to the answer."""
        state = self._states.pop()
        return state.stage == ANSWER and not state.just_reached

    def _behind(self, state: State, id_: int) -> State:
        if state.stage == ANSWER:
            return State(ANSWER, (), 0)
        if state.stage == BEGINNING and state.done == 0 and id_ in self._blanks:
            return state
        paths, done = state.paths, state.done
        if state.stage == THOUGHT:
            if id_ != self.start.ways[0].ids[0]:
                return state
            paths = self.start.ways
        left = tuple(path for path in paths if path.ids[done] == id_)
        whole = next((path for path in left if len(path.ids) == done + 1), None)
        if whole is not None:
            return State(ANSWER, (), 0, just_reached=True) if whole.answers else State(THOUGHT)
        if left:
            return State(WAY if state.stage != BEGINNING else BEGINNING, left, done + 1)
        return State(ANSWER, (), 0)  # of another kind: it began with this id, or with its heading


class _AnswerFilter:
    """Lets a sequence think; a reply does not end before its answer has begun."""

    def __init__(self, inner: EndingFilter, start: AnswerStart, vocab_size: int) -> None:
        self._inner, self._vocab_size = inner, vocab_size
        self._progress = Progress(start, skips_blanks=False)
        self._stop_ids = np.zeros(0, np.int64)

    def end_with(self, stop_ids: Iterable[int]) -> None:
        ids = sorted(id_ for id_ in stop_ids if id_ < self._vocab_size)
        self._stop_ids = np.array(ids, np.int64)
        self._inner.end_with(ids)

    def is_complete(self) -> bool:
        return self._progress.state.stage == ANSWER and self._inner.is_complete()

    def accept(self, id_: int) -> None:
        if self._progress.accept(id_):
            self._inner.accept(id_)

    def undo(self, id_: int) -> None:
        if self._progress.undo():
            self._inner.undo(id_)

    def apply(self, candidates: Candidates) -> Candidates:
        state = self._progress.state
        if state.stage == ANSWER:
            return self._inner.apply(candidates)
        if state.stage == THOUGHT:
            candidates.logits[candidates.places(self._stop_ids)[0]] = -np.inf
            return candidates
        place, _ = candidates.places(state.next_ids())
        logits = candidates.logits[place]
        if state.done == 0 and self._progress.start.may_answer:
            candidates = self._inner.apply(candidates)
        else:
            candidates.logits[:] = -np.inf
        candidates.logits[place] = logits
        return candidates
