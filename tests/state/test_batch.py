"""The ragged batch."""

from dataclasses import replace
from functools import partial

import numpy as np

from edgerun.state import Adjustment, Batch


def test_batches_join_with_their_logit_rows():
    parts = [Batch.of([1, 2, 3], 0, 0), Batch.of([4], 9, 2), Batch.of([5, 6], 0, 1, logits="all")]
    joined = Batch.join(parts)
    assert joined.ids.tolist() == [1, 2, 3, 4, 5, 6]
    assert joined.positions.tolist() == [0, 1, 2, 9, 0, 1]
    assert joined.sequences.tolist() == [0, 0, 0, 2, 1, 1]
    assert joined.logit_rows.tolist() == [2, 3, 4, 5]
    assert Batch.of([1, 2], 0, 0, logits="none").logit_rows.size == 0


def test_only_batches_that_all_ask_for_the_largest_logit_do_so_together():
    plain = Batch.of([1, 2, 3], 0, 0)
    largest = replace(plain, largest_only=True)
    assert not plain.largest_only and largest.part(1, 3).largest_only
    assert not plain.part(1, 3).largest_only
    assert Batch.join([largest, largest]).largest_only
    assert not Batch.join([largest, plain]).largest_only


def test_adjustments_stay_with_their_rows():
    ones = np.ones(1, np.float32)
    first, second = (partial(Adjustment, np.array([id_]), ones, ones) for id_ in (3, 4))
    plain = Batch.of([1, 2, 3], 0, 0, logits="all")
    batch = replace(plain, adjustments=(first, None, second))
    assert batch.part(1, 3).adjustments == (None, second)
    assert Batch.join([plain, batch.part(0, 2)]).adjustments == (None, None, None, first, None)
    assert Batch.join([plain, plain]).adjustments == plain.part(0, 2).adjustments == ()
