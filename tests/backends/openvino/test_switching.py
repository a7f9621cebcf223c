"""Placements change after any call: pages are the truth, so nothing that was computed is lost."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass

import numpy as np
import pytest
from numpy.typing import NDArray

from edgerun.backends.base import Phase
from edgerun.backends.openvino import pieces
from edgerun.state import Batch, SequenceStore
from tests.backends.openvino.conftest import Placed, placed
from tests.backends.openvino.test_places import PLACES, ids_of
from tests.support.bundles import bundle_of, error_of

pytest.importorskip("openvino")

CONTEXT, SLOTS = 160, 3
IDS = np.resize(ids_of("qwen3"), 4 * CONTEXT).astype(np.int32)
STORIES = {"fp32": 50, "fp16": 25, "int8": 25}
# Of the range of logits. Rows see those of their own call as they were computed.
BOUNDS = {"fp32": 2e-5, "fp16": 2e-3, "int8": 5e-2}


@pytest.fixture(scope="module", params=list(STORIES))
def places(request: pytest.FixtureRequest) -> Iterator[tuple[str, list[Placed]]]:
    """The model at every place, with the CPU alone first; a call has up to three pieces there."""
    folder = bundle_of("qwen3", weights="int4", activations="fp32")
    with ExitStack() as opened:
        patch = opened.enter_context(pytest.MonkeyPatch.context())
        patch.setitem(pieces.ROWS, Phase.PREFILL, (32,))
        yield (
            request.param,
            [
                opened.enter_context(placed(folder, place, kv_cache=request.param, context=CONTEXT))
                for place in ("prefill=cpu", *PLACES)
            ],
        )


class Sequences:
    """Sequences in a store, and what they consist of."""

    def __init__(self, store: SequenceStore) -> None:
        self.store = store
        self.ids: dict[int, NDArray[np.int32]] = {store.open(): IDS[:0]}

    def extend(self, model: Placed, slot: int, rows: int, first: int) -> NDArray[np.float32]:
        """Logits after more ids, whose keys and values a model computes."""
        start = len(self.ids[slot])
        new = IDS[first : first + rows]
        self.ids[slot] = np.concatenate([self.ids[slot], new])
        return model.run(self.store, Batch.of(new, start, slot))

    def rewind(self, slot: int, length: int) -> None:
        remaining_tokens = self.store.rewind(slot, min(length, len(self.ids[slot])))
        self.ids[slot] = self.ids[slot][:remaining_tokens]

    def fork(self, slot: int, length: int) -> None:
        if len(self.ids) < SLOTS:
            child, shared_tokens = self.store.fork(slot, min(length, len(self.ids[slot])))
            self.ids[child] = self.ids[slot][:shared_tokens]

    def close(self, slot: int) -> None:
        if len(self.ids) > 1:
            self.store.close(slot)
            del self.ids[slot]


@dataclass(frozen=True)
class Story:
    """What happens to some sequences, whose placement changes after every ``every``-th token.

    Attributes:
        every: tokens.
        places: that take turns.
        steps: what, to which sequence, and how many tokens or how long.
    """

    every: int
    places: tuple[int, int]
    steps: list[tuple[str, int, int]]

    @classmethod
    def of(cls, seed: int) -> Story:
        rng = random.Random(seed)
        every = rng.choice([1, 2, 3, 7, 16, 17, 20, 33, 64, 90])
        first, other = rng.sample(range(1 + len(PLACES)), 2)
        kinds = ["extend", "extend", "extend", "rewind", "fork", "close"]
        steps = [
            # Lengths are often the same, so that calls begin where others began before them.
            (
                rng.choice(kinds),
                rng.randrange(SLOTS),
                rng.choice([1, 20, 20, 40, rng.randint(2, 90)]),
            )
            for _ in range(rng.randint(3, 12))
        ]
        return cls(every, (first, other), steps)

    def logits(self, models: list[Placed], *, is_placed: bool) -> list[NDArray[np.float32]]:
        """Of all calls: each where the story says, or at the first place."""
        sequences = Sequences(models[0].store(SLOTS))
        computed = []
        for index, (what, which, amount) in enumerate(self.steps):
            slot = sorted(sequences.ids)[which % len(sequences.ids)]
            if what != "extend":
                getattr(sequences, what)(*((slot,) if what == "close" else (slot, amount)))
                continue
            stop = min(len(sequences.ids[slot]) + min(amount, 12 * self.every), CONTEXT)
            while (start := len(sequences.ids[slot])) < stop:
                turn = start // self.every
                rows = min(stop, (turn + 1) * self.every) - start
                place = self.places[turn % 2] if is_placed else 0
                first = (7 * index + start) % len(IDS) // 2
                computed.append(sequences.extend(models[place], slot, rows, first))
        return computed

    def error(self, models: list[Placed]) -> float:
        """Of the worst call, against the CPU alone, which makes the same calls."""
        pairs = zip(
            self.logits(models, is_placed=True), self.logits(models, is_placed=False), strict=True
        )
        return max((error_of(ours, theirs) for ours, theirs in pairs), default=0.0)


def test_a_placement_may_change_after_every_kth_token(places: tuple[str, list[Placed]]) -> None:
    """Both ways, with rewinds, forks and closed sequences between, against the CPU alone."""
    kv_cache, models = places
    for seed in range(STORIES[kv_cache]):
        assert Story.of(seed).error(models) <= BOUNDS[kv_cache], Story.of(seed)
    assert all(model.calls() for model in models[1:])


@pytest.mark.slow
def test_a_placement_may_change_in_many_more_stories(places: tuple[str, list[Placed]]) -> None:
    kv_cache, models = places
    for seed in range(1000, 1000 + 20 * STORIES[kv_cache]):
        assert Story.of(seed).error(models) <= BOUNDS[kv_cache], Story.of(seed)


def test_stories_fail_where_versions_are_not_compared(
    places: tuple[str, list[Placed]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A device that takes its copy for good because a sequence has the length that it had."""
    kv_cache, models = places
    monkeypatch.setattr(SequenceStore, "version", lambda self, slot: 1)
    wrong = sum(Story.of(seed).error(models) > BOUNDS[kv_cache] for seed in range(20))
    assert wrong >= 5


@pytest.mark.parametrize("place", [1, 2, 3])
@pytest.mark.parametrize("rows", [1, 20])
def test_nothing_stale_is_read_of_a_sequence_that_was_filled_again(
    places: tuple[str, list[Placed]], place: int, rows: int
) -> None:
    """Rewound, filled elsewhere to the same length with other ids, and continued as before."""
    kv_cache, models = places
    results = []
    for there in (models[0], models[place]):
        sequences = Sequences(models[0].store())
        (slot,) = sequences.ids
        sequences.extend(models[0], slot, 40, 0)
        before = sequences.extend(there, slot, rows, 100)
        sequences.rewind(slot, 3)
        sequences.extend(models[0], slot, 37, 50)
        after = sequences.extend(there, slot, rows, 100)
        assert error_of(after, before) > 5 * BOUNDS[kv_cache]  # the past matters
        results.append(after)
    assert error_of(results[1], results[0]) <= BOUNDS[kv_cache]


def test_all_networks_of_a_device_share_a_mirror_of_one_sequence(
    places: tuple[str, list[Placed]],
) -> None:
    """It has the float32 keys and values of as many tokens as the largest network has room for."""
    kv_cache, models = places
    both = models[2]
    sequences = Sequences(both.store(SLOTS))
    for slot in (0, 1, 2):
        if slot:
            sequences.fork(0, 30)
        sequences.extend(both, slot, 60, 20 * slot)
        sequences.extend(both, slot, 1, 0)
    floats = sum(s.kv_heads * (s.key_dim + s.value_dim) for s in both.states)  # type: ignore[union-attr]
    assert both.session().mirror.nbytes == 4 * floats * pieces.PAST
