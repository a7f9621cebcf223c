"""Marks of a blind reading: told apart by the key, and refused where they are none."""

from __future__ import annotations

import pytest

from tools.train_default.chats.following import SUBJECTS
from tools.train_default.chats.reading import (
    COUNT,
    SIDES,
    chosen_subjects,
    read_marks,
    shuffled,
    tally,
)


def test_subjects_are_drawn_once_each() -> None:
    nouns = chosen_subjects(seed=1)
    assert len(set(nouns)) == COUNT
    assert set(nouns) <= {noun for kind in SUBJECTS.values() for noun in kind}
    assert nouns != chosen_subjects(seed=2)


def test_the_key_says_where_the_new_stories_are() -> None:
    old, new = [f"old {n}" for n in range(COUNT)], [f"new {n}" for n in range(COUNT)]
    pairs, new_sides = shuffled(old, new, seed=3)
    assert set(new_sides) == set(SIDES)
    for before, after, pair, side in zip(old, new, pairs, new_sides, strict=True):
        assert pair[SIDES.index(side)] == after
        assert pair[1 - SIDES.index(side)] == before


def test_marks_are_counted_for_the_model_that_earned_them() -> None:
    marks = read_marks(
        "1 A 5 4 5 4\n1 B 2 2 1 1\n\n2 A 3 3 3 3\n2 B 3 3 3 3\n3 A 4 4 4 4\n3 B 1 1 1 5\n"
    )
    result = tally(marks, ["A", "B", "B"])
    assert result["grammar_new"] == 3.0
    assert result["grammar_old"] == 3.0
    assert result["ending_new"] == 4.0
    assert result["ending_old"] == pytest.approx(2.67)
    assert result["new_better"] == 0.5  # one is better, one as good, one worse


@pytest.mark.parametrize(
    "line",
    [
        "1 C 1 1 1 1",
        "1 A 1 1 1",
        "1 A 1 1 1 6",
        "1 A 0 1 1 1",
        "1 A 1 1 1 x",
        "1",
        "1 A 1 1 1 1\n1 A 1 1 1 1",
    ],
)
def test_what_is_no_mark_is_refused(line: str) -> None:
    with pytest.raises(ValueError, match="four marks from 1 to 5"):
        read_marks(line)


def test_a_story_without_marks_is_named() -> None:
    marks = read_marks("1 A 1 1 1 1\n1 B 1 1 1 1\n2 A 1 1 1 1\n")
    with pytest.raises(ValueError, match="story B of pair 2 has no marks"):
        tally(marks, ["A", "B"])
