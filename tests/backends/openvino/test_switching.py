"""Placements change after any call: pages are the truth, so nothing that was computed is lost."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from edgerun.state import Batch, SequenceStore
from tests.backends.openvino.conftest import Placed, placed
from tests.backends.openvino.test_places import PLACES, ids_of
from tests.support.bundles import bundle_of, error_of

pytest.importorskip("openvino")

CONTEXT, SLOTS = 160, 3
IDS = np.resize(ids_of("qwen3"), 4 * CONTEXT).astype(np.int32)
EXAMPLES = {"fp32": 120, "fp16": 40, "int8": 40}
# Of the range of logits. Rows see those of their own call as they were computed.
BOUNDS = {"fp32": 2e-5, "fp16": 2e-3, "int8": 5e-2}


@pytest.fixture(scope="module", params=list(EXAMPLES))
def places(request: pytest.FixtureRequest) -> Iterator[tuple[str, list[Placed]]]:
    """The model at every place, with the CPU alone first."""
    folder = bundle_of("qwen3", weights="int4", activations="fp32")
    with ExitStack() as opened:
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

    def extend(self, model: Placed, slot: int, rows: int, first: int) -> NDArray[np.float32] | None:
        """Logits after more ids, whose keys and values a model computes."""
        start = len(self.ids[slot])
        rows = min(rows, CONTEXT - start)
        if not rows:
            return None
        new = IDS[first : first + rows]
        self.ids[slot] = np.concatenate([self.ids[slot], new])
        return model.run(self.store, Batch.of(new, start, slot))

    def rewind(self, slot: int, length: int) -> None:
        kept = self.store.rewind(slot, min(length, len(self.ids[slot])))
        self.ids[slot] = self.ids[slot][:kept]

    def fork(self, slot: int, length: int) -> None:
        if len(self.ids) < SLOTS:
            made, kept = self.store.fork(slot, min(length, len(self.ids[slot])))
            self.ids[made] = self.ids[slot][:kept]

    def close(self, slot: int) -> None:
        if len(self.ids) > 1:
            self.store.close(slot)
            del self.ids[slot]


Step = tuple[str, int, int, int]
steps = st.lists(
    st.tuples(
        st.sampled_from(["extend", "extend", "extend", "rewind", "fork", "close"]),
        st.integers(0, SLOTS - 1),  # which sequence
        # Rows, or a length. Often the same, so that calls begin where others began before them.
        st.one_of(st.sampled_from([1, 20, 20, 40]), st.integers(2, 90)),
        st.integers(0, 3),  # at which place
    ),
    min_size=2,
    max_size=14,
)


def run(model_of: list[Placed], done: list[Step], places: list[int]) -> list[NDArray[np.float32]]:
    """Logits of all calls, those of each at the place that is named for it."""
    sequences = Sequences(model_of[0].store(SLOTS))
    found = []
    for index, (what, which, amount, _) in enumerate(done):
        slot = sorted(sequences.ids)[which % len(sequences.ids)]
        if what == "extend":
            logits = sequences.extend(model_of[places[index]], slot, amount, 7 * index)
            found += [logits] if logits is not None else []
        elif what == "close":
            sequences.close(slot)
        else:
            getattr(sequences, what)(slot, amount)
    return found


def test_a_placement_may_change_after_any_call(places: tuple[str, list[Placed]]) -> None:
    """With rewinds, forks and closed sequences between, against the CPU alone."""
    kv_cache, models = places

    @settings(
        max_examples=EXAMPLES[kv_cache],
        derandomize=True,
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow],
    )
    @given(steps)
    def check(done: list[Step]) -> None:
        expected = run(models, done, [0] * len(done))
        found = run(models, done, [place for *_, place in done])
        for ours, theirs in zip(found, expected, strict=True):
            assert error_of(ours, theirs) <= BOUNDS[kv_cache]

    check()
    assert all(model.calls() for model in models[1:])


@pytest.mark.parametrize("place", [1, 2, 3])
@pytest.mark.parametrize("rows", [1, 20])
def test_nothing_stale_is_read_of_a_sequence_that_was_filled_again(
    places: tuple[str, list[Placed]], place: int, rows: int
) -> None:
    """Rewound, filled elsewhere to the same length with other ids, and continued as before."""
    kv_cache, models = places
    found = []
    for there in (models[0], models[place]):
        sequences = Sequences(models[0].store())
        (slot,) = sequences.ids
        sequences.extend(models[0], slot, 40, 0)
        before = sequences.extend(there, slot, rows, 100)
        sequences.rewind(slot, 3)
        sequences.extend(models[0], slot, 37, 50)
        after = sequences.extend(there, slot, rows, 100)
        assert before is not None and after is not None
        assert error_of(after, before) > 5 * BOUNDS[kv_cache]  # the past matters
        found.append(after)
    assert error_of(found[1], found[0]) <= BOUNDS[kv_cache]
