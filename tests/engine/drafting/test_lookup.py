"""What a text said before is what it is expected to say again."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgerun.engine.drafting.lookup import DRAFTER, FEWEST, MOST_COMPARED


def drafted(ids: list[int], most: int = 4) -> list[int]:
    draft = DRAFTER().draft(ids, most)
    return [] if draft is None else draft.ids


@pytest.mark.parametrize(
    ("ids", "expected"),
    [
        ([1, 2, 3, 4, 5, 6, 1, 2], [3, 4, 5, 6]),
        ([1, 2, 3, 1, 2, 4, 1, 2], [4, 1, 2, 4]),  # the last time counts; then it comes again
        ([7, 7, 7], [7, 7, 7, 7]),
        ([1, 2, 3, 4], []),
        ([1, 2, 3, 2], []),  # one id alone says little
        ([1], []),
        ([1, 1], []),
    ],
)
def test_it_goes_on_as_it_did_the_last_time(ids: list[int], expected: list[int]) -> None:
    assert drafted(ids) == expected


@pytest.mark.parametrize(("same", "evidence"), [(2, 2), (3, 2), (4, 3), (8, 4), (64, 7), (99, 7)])
def test_evidence_is_how_much_was_the_same(same: int, evidence: int) -> None:
    text = list(range(1000, 1000 + same))
    draft = DRAFTER().draft([1, *text, 5, 2, *text], 1)
    assert draft is not None
    assert (draft.ids, draft.evidence) == ([5], evidence)
    assert draft.likelihood == pytest.approx(1 - 1.6 / 2**evidence)


@given(st.lists(st.integers(0, 3), max_size=40), st.integers(1, 15))
def test_growing_texts_are_looked_up_as_whole_ones_are(ids: list[int], most: int) -> None:
    drafter = DRAFTER()
    for end in range(1, len(ids) + 1):
        draft = drafter.draft(ids[:end], most)
        assert draft == DRAFTER().draft(ids[:end], most)
        earlier = [
            place
            for place in range(FEWEST, end)
            if ids[place - FEWEST : place] == ids[end - FEWEST : end]
        ]
        assert (draft is not None) == bool(earlier)
        if draft is not None:
            said = ids[earlier[-1] : end]
            assert draft.ids == (said * most)[:most]
            same = 0
            while same < min(earlier[-1], MOST_COMPARED) and (
                ids[earlier[-1] - 1 - same] == ids[end - 1 - same]
            ):
                same += 1
            assert draft.evidence == same.bit_length()
