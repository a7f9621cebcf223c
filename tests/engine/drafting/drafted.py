"""A plain model whose replies are drafted by a function of their ids."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from edgerun.engine.chooser.params import SamplingParams
from edgerun.engine.drafting.base import Draft, Drafter
from edgerun.engine.drafting.drafting import Drafting
from edgerun.engine.drafting.pace import Pace
from edgerun.engine.engine import Engine
from edgerun.engine.sequence import Sequence as Reply
from tests.support.plain_store import VOCAB, PlainPrograms, PlainStore, next_id

PROMPT = [4, 9, 2]
LINEAR = [0.0, *(1 + 0.1 * more for more in range(16))]  # seconds, by rows


def pace_of(times: dict[int, float]) -> Pace:
    pace = Pace()
    for rows, seconds in times.items():
        pace.add(rows, seconds)
        pace.add(rows, seconds)
    return pace


class Scripted(Drafter):
    """Drafts what a function of the ids says."""

    def __init__(
        self,
        guess: Callable[[list[int]], list[int]],
        evidence: Callable[[list[int]], int] = lambda ids: 3,
    ) -> None:
        self.guess, self.evidence = guess, evidence

    def draft(self, ids: Any, most: int) -> Draft | None:
        drafted = self.guess(list(ids))[:most]
        return Draft(drafted, self.evidence(list(ids)), 0.9) if drafted else None


def said(ids: list[int], count: int) -> list[int]:
    """What the plain model says next."""
    whole = list(ids)
    for _ in range(count):
        whole.append(next_id(whole))
    return whole[len(ids) :]


class Run:
    """A plain model whose calls take as long as ``LINEAR`` says."""

    def __init__(
        self,
        guess: Callable[[list[int]], list[int]],
        *,
        context: int = 64,
        chunk_rows: int = 64,
        prompt_rows: int = 64,
        takes_back: bool = True,
    ) -> None:
        self.store, self.programs = PlainStore(4, 999, context), PlainPrograms()
        self.drafting: Any = Drafting(lambda: Scripted(guess), takes_back=takes_back)
        pace = pace_of(dict(enumerate(LINEAR[1:], 1)))
        pace.add = lambda rows, seconds: None  # type: ignore[method-assign]
        self.drafting.pace = pace
        self.engine = Engine(
            self.programs,  # type: ignore[arg-type]
            self.store,  # type: ignore[arg-type]
            VOCAB,
            chunk_rows=chunk_rows,
            prompt_rows=prompt_rows,
            drafting=self.drafting,
        )

    def reply(self, prompt: list[int], **sampling: Any) -> Reply:
        params = SamplingParams(**{"temperature": 0, "max_tokens": 24, **sampling})
        sequence = self.engine.sequence(prompt, params)
        for _ in self.engine.tokens(sequence):
            pass
        return sequence

    def together(self, tokens: int) -> list[Reply]:
        """Two replies that share all calls."""
        params = SamplingParams(temperature=0, max_tokens=tokens)
        sequences = [self.engine.sequence([number, 1], params) for number in range(2)]
        for sequence in sequences:
            self.engine.add(sequence)
        while not all(sequence.is_ended for sequence in sequences):
            self.engine.step()
            for sequence in sequences:
                sequence.take()
        return sequences
