"""The rows of several sequences as one batch."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from edgerun.engine.call import batch_of
from edgerun.errors import Cancelled
from edgerun.state import Adjustment, Batch
from tests.engine.test_engine import GREEDY, engine
from tests.support import fakes


def sequence(
    slot: int, cached: int, ids: int, adjusts: bool = False, largest: bool = True, drafted=()
):
    ones = np.ones(1, np.float32)
    adjustment = Adjustment(np.array([slot]), ones, ones) if adjusts else None
    return SimpleNamespace(
        ids=list(range(ids)),
        cached=cached,
        logits_from=ids - 1,
        lease=SimpleNamespace(slot=slot),
        takes_largest=largest,
        adjust=(lambda: adjustment) if adjusts else None,
        take_logits=None,
        drafted=drafted,
    )


@pytest.mark.parametrize("largest", [True, False])
def test_adjustments_are_of_the_rows_whose_logits_are_wanted(largest):
    parts = [
        (sequence(0, 0, 5, adjusts=True), 3),  # a part of a prompt: no logits
        (sequence(1, 4, 5), 1),
        (sequence(2, 0, 2, adjusts=True, largest=largest), 2),
    ]
    batch, bounds = batch_of(parts)
    assert bounds == [0, 0, 1, 2]
    assert batch.logit_rows.tolist() == [3, 5]
    assert batch.largest_only == largest
    if largest:
        assert batch.adjustments[0] is None
        assert batch.adjustments[1]() is parts[2][0].adjust()
    else:
        assert batch.adjustments == ()
    assert batch_of(parts[1:2])[0].adjustments == ()


def test_what_was_drafted_follows_the_ids_of_a_reply():
    """With the logits behind each; of those nobody knows yet how they will be adjusted."""
    batch, bounds = batch_of([(sequence(1, 4, 5, adjusts=True, drafted=(7, 9)), 1)])
    assert (batch.ids.tolist(), batch.positions.tolist()) == ([4, 7, 9], [4, 5, 6])
    assert (batch.sequences.tolist(), batch.logit_rows.tolist()) == ([1] * 3, [0, 1, 2])
    assert bounds == [0, 3]
    assert not batch.largest_only
    assert batch.adjustments == ()


@pytest.mark.parametrize("count", [1, 2])
def test_a_call_that_is_given_up_because_nobody_waits_is_neither_repeated_nor_an_error(
    count: int,
) -> None:
    class GivenUp(fakes.FakeExecutable):
        def __call__(self, batch: Batch, cache: Any, values: Any = None) -> Any:
            super().__call__(batch, cache)
            for sequence in sequences:
                run.cancel(sequence)
            assert batch.is_cancelled()
            raise Cancelled("nobody wants it")

    executable = GivenUp()
    run = engine(executable)
    sequences = [run.sequence([1, 2, 3 + number], GREEDY) for number in range(count)]
    for sequence in sequences:
        run.add(sequence)
    assert set(run.wait(sequences)) == set(sequences)
    assert len(executable.rows) == 1
    assert [sequence.error for sequence in sequences] == [None] * count
