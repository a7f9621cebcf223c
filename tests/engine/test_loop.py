"""The loop, whatever happens to it: everybody gets the ids of their serial run."""

from __future__ import annotations

import gc
import random
from collections.abc import Callable
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

import pytest

from edgerun.engine.chooser.chooser import Chooser
from edgerun.engine.chooser.logprobs import token_logprob
from edgerun.engine.chooser.params import SamplingParams
from edgerun.engine.drafting.base import Draft, Drafter
from edgerun.engine.drafting.drafting import Drafting
from edgerun.engine.engine import Engine
from edgerun.engine.sequence import Scoring, Sequence
from edgerun.errors import BackendError
from edgerun.state import Batch, Room
from tests.support.plain_store import (
    PAGE_TOKENS,
    VOCAB,
    PlainPrograms,
    PlainStore,
    logits_of,
    next_id,
)

FEW, MANY = 100, 10_000
COMMON = [5, 9, 9, 5, 3, 1, 7, 7, 2, 8, 8, 1]
POISON = 31  # the model cannot stand it in a prompt


def serial(prompt: list[int], params: SamplingParams, context: int) -> list[int]:
    """The rule, without store or engine."""
    chooser, ids = Chooser(params, prompt, VOCAB), list(prompt)
    while len(ids) < min(context, len(prompt) + (params.max_tokens or context)):
        ids.append(chooser.draw(logits_of(ids)))
        if ids[-1] in params.stop_ids:
            break
        chooser.accept(ids[-1])
    return ids[len(prompt) :]


class Tripping(list[int]):
    """Ids between whose changes and the next line the engine can be interrupted."""

    def __init__(self, ids: list[int], trip: Callable[[], None]) -> None:
        super().__init__(ids)
        self.trip = trip

    def append(self, id_: int) -> None:
        self.trip()
        super().append(id_)
        self.trip()


class Guessing(Drafter):
    """Drafts some of what will be said, and then what will not; at times nothing."""

    def __init__(self, rng: random.Random, next_ids: Callable[[list[int]], list[int]]) -> None:
        self.rng, self.next_ids = rng, next_ids

    def draft(self, ids: Any, most: int) -> Draft | None:
        rng, right = self.rng, self.next_ids(ids)
        drafted = [*right[: rng.randint(0, 9)], *(rng.randrange(VOCAB) for _ in range(6))]
        return Draft(drafted[: rng.randint(1, most)], 0, 0.5) if rng.random() < 0.7 else None


class Day:
    """A random schedule: arrivals, readers, cancellations, errors and interrupts."""

    def __init__(self, seed: int) -> None:
        self.rng = rng = random.Random(seed)
        slots, self.context = rng.randint(1, 5), rng.randint(12, 40)
        pages = -(-self.context // PAGE_TOKENS)
        self.store = PlainStore(slots, rng.randint(pages, pages * slots), self.context)
        self.programs = PlainPrograms()
        self.store.trip, self.programs.trip = self.trip, self.check_call
        chunk_rows, prompt_rows = rng.randint(1, 16), rng.randint(1, 8)
        self.engine: Any = Engine(
            self.programs,  # type: ignore[arg-type]
            self.store,  # type: ignore[arg-type]
            VOCAB,
            chunk_rows=chunk_rows,
            prompt_rows=prompt_rows,
            drafting=rng.choice([None, self.drafting()]),
        )
        self.taken: dict[Sequence, list[int]] = {}
        self.expected: dict[Sequence, list[int]] = {}
        self.until_interrupt = 0
        self.largest = self.longest = 0  # rows beyond the limits
        self.is_first_call = True

    def drafting(self) -> Drafting:
        takes_back = self.rng.random() < 0.5
        drafting: Any = Drafting(lambda: Guessing(self.rng, self.next_ids), takes_back=takes_back)
        drafting.pace = SimpleNamespace(add=lambda *_: None, best=lambda count, _, **__: count)
        return drafting

    def next_ids(self, ids: list[int]) -> list[int]:
        """What the sequence with these ids will say."""
        for sequence, expected in self.expected.items():
            if sequence.ids is ids:
                return expected[len(ids) - sequence.prompt_tokens :]
        return []

    def trip(self) -> None:
        self.until_interrupt -= 1
        if self.until_interrupt == 0:
            raise KeyboardInterrupt

    def check_call(self, batch: Batch) -> None:
        """Fails as models fail, and makes sure that replies do not wait for prompts."""
        slots, limits = batch.sequences.tolist(), self.engine.limits
        by_slot = {s.lease.slot: s for s in self.engine._queue.sequences if s.lease is not None}
        rows = {sequence: slots.count(slot) for slot, sequence in by_slot.items()}
        replies = {s for s in by_slot.values() if s.is_wanted and s.pending == 1}
        of_prompts = sum(count - len(s.drafted) for s, count in rows.items() if s.pending > 1)
        self.largest = max(self.largest, len(slots) - limits.chunk_rows)
        if replies and self.is_first_call:  # others repeat it part by part
            self.longest = max(self.longest, of_prompts - limits.prompt_rows)
        self.is_first_call = False
        self.trip()
        if POISON in batch.ids:
            raise BackendError("lost")

    def arrive(self) -> None:
        rng = self.rng
        begin = COMMON[: rng.choice([0, 4, 9, 12])]
        prompt = [*begin, *(rng.randrange(VOCAB - 1) for _ in range(rng.randint(1, 12)))]
        prompt = prompt[-(self.context - 1) :]
        if rng.random() < 0.05:
            prompt[-1] = POISON
        if rng.random() < 0.1:
            sequence: Sequence = Scoring(prompt)
            expected = [next_id(prompt[: end + 1]) for end in range(len(prompt))]
        else:
            params = SamplingParams(
                temperature=rng.choice([0, 0.3]),
                seed=rng.randrange(99),
                max_tokens=rng.randint(1, 20),
                stop_ids=rng.choice([(), (), (rng.randrange(VOCAB),)]),
                logprobs=rng.choice([None, 0, 3]),
            )
            sequence = self.engine.sequence(prompt, params)
            expected = serial(prompt, params, self.context)
            sequence.ids = Tripping(sequence.ids, self.trip)
        old = [s for s in self.taken if s.is_ended]
        sequence.is_retained = rng.random() < 0.3
        if old and rng.random() < 0.3:
            sequence.previous = rng.choice(old)
        self.expected[sequence], self.taken[sequence] = expected, []
        self.engine.add(sequence)

    def read(self, sequence: Sequence) -> None:
        """One reader's turn: takes what is there, or makes a step."""
        if not sequence.is_ready:
            self.step()
        if isinstance(sequence, Scoring):
            block = sequence.take_block()
            self.taken[sequence] += [] if block is None else block.argmax(axis=-1).tolist()
        else:
            taken = self.taken[sequence]
            if (token := sequence.take()) is None:
                return
            if sequence.logprobs is None:
                assert token.logprob is None
            else:
                logits = logits_of([*sequence.ids[: sequence.prompt_tokens], *taken])
                assert token.logprob == token_logprob(logits, token.id, sequence.logprobs)
            taken.append(token.id)

    def step(self) -> None:
        if self.rng.random() < 0.05:
            self.until_interrupt = self.rng.randint(1, 30)
        self.is_first_call = True
        with suppress(KeyboardInterrupt):
            self.engine.step()
        self.until_interrupt = 0

    def cancel(self, sequence: Sequence) -> None:
        self.engine.cancel(sequence)

    def unfinished(self) -> list[Sequence]:
        return [
            s for s in self.taken if s.error is None and not s.cancelled and not self.is_whole(s)
        ]

    def is_whole(self, sequence: Sequence) -> bool:
        return len(self.taken[sequence]) == len(self.expected[sequence])

    def run(self) -> None:
        rng = self.rng
        for _ in range(rng.randint(5, 40)):
            what, unfinished = rng.random(), self.unfinished()
            if what < 0.3 or not unfinished:
                self.arrive()
            elif what < 0.35:
                self.cancel(rng.choice(unfinished))
            else:
                self.read(rng.choice(unfinished))
        for _ in range(10_000):
            if not self.unfinished():
                break
            self.read(rng.choice(self.unfinished()))
        assert not self.unfinished()

    def check(self) -> None:
        assert (self.largest, self.longest) == (0, 0)
        for sequence, expected in self.expected.items():
            taken = self.taken[sequence]
            assert taken == expected[: len(taken)]
            said = sequence.ids[sequence.prompt_tokens :]
            assert said == expected[: len(said)]  # and no more
            assert not sequence.is_starved
            if sequence.error is not None:
                assert POISON in sequence.ids[: sequence.prompt_tokens]
                assert isinstance(sequence.error, BackendError)

    def check_nothing_is_left(self) -> None:
        """When their readers have gone and forgotten all sequences."""
        while self.taken:
            self.engine.cancel(self.taken.popitem()[0])
        self.expected.clear()
        self.engine.room()  # the last ones end
        everything = Room(len(self.store._owners), self.store.pages, PAGE_TOKENS)
        if self.store.room() != everything:
            gc.collect()  # the traceback of an error has what the step had
        assert self.store.room() == everything
        self.engine.room()
        assert self.engine._queue._slots._retained == []


def check_days(count: int) -> None:
    for seed in range(count):
        day = Day(seed)
        day.run()
        day.check()
        day.check_nothing_is_left()


def test_random_schedules_give_everybody_their_serial_ids() -> None:
    check_days(FEW)


@pytest.mark.slow
def test_many_random_schedules_give_everybody_their_serial_ids() -> None:
    check_days(MANY)
