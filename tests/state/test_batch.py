"""The ragged batch."""

from edgerun.state import (
    Batch,
)


def test_batches_join_with_their_logit_rows():
    parts = [Batch.of([1, 2, 3], 0, 0), Batch.of([4], 9, 2), Batch.of([5, 6], 0, 1, logits="all")]
    joined = Batch.join(parts)
    assert joined.ids.tolist() == [1, 2, 3, 4, 5, 6]
    assert joined.positions.tolist() == [0, 1, 2, 9, 0, 1]
    assert joined.sequences.tolist() == [0, 0, 0, 2, 1, 1]
    assert joined.logit_rows.tolist() == [2, 3, 4, 5]
    assert Batch.of([1, 2], 0, 0, logits="none").logit_rows.size == 0
