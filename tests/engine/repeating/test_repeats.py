"""What was said before, against a definition that compares every place with the end."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from edgerun.engine.chooser.repeating.matches import Matches
from edgerun.engine.chooser.repeating.repeats import MOST_COMPARED, Repeats

FEW = st.integers(0, 2)
ALL = 2**31 - 1
POP = -1


def naive(ids: list[int], shortest: int, window: int, longest: int) -> dict[int, int]:
    """The longest match before each id that came in the window."""
    lengths: dict[int, int] = {}
    begin = max(0, len(ids) - window)
    for place in range(begin, len(ids)):
        length = 0
        while length < min(longest, place - begin) and ids[place - 1 - length] == ids[-1 - length]:
            length += 1
        if length >= shortest:
            lengths[ids[place]] = max(length, lengths.get(ids[place], 0))
    return lengths


def loops(most: int) -> st.SearchStrategy[list[int]]:
    """Texts in which much is repeated."""
    parts = st.tuples(st.lists(FEW, min_size=1, max_size=3), st.integers(1, most))
    return st.lists(parts, max_size=4).map(
        lambda given: [id_ for part, times in given for id_ in part * times]
    )


@given(
    prompt=loops(30),
    steps=st.lists(st.one_of(FEW, st.just(POP)), max_size=60),
    shortest=st.one_of(st.integers(1, 4), st.integers(1, 40)),
    window=st.one_of(st.just(ALL), st.integers(1, 12), st.integers(1, 200)),
    longest=st.one_of(st.integers(1, 6), st.integers(1, 300)),
)
@example([0] * 70, [POP, 0, 0], 1, ALL, 300)  # more ids than there was room for
@example([], [0] * 60, 1, 5, 300)
def test_matches_are_those_of_a_comparison_of_every_place(
    prompt: list[int], steps: list[int], shortest: int, window: int, longest: int
) -> None:
    """However they are sought; one of the two may say that it takes too long."""
    repeats, matches = Repeats(shortest, window, prompt), Matches(shortest, window, prompt)
    ids = list(prompt)
    for step in [*steps, 0]:
        if step != POP:
            repeats.append(step)
            matches.append(step)
            ids.append(step)
        elif ids:
            repeats.pop()
            matches.pop()
            ids.pop()
        assert len(repeats) == len(matches) == len(ids)
        expected = naive(ids, shortest, window, longest)
        assert matches.lengths(longest) == expected
        assert repeats.lengths(longest) in (expected, None)


def test_of_many_matches_the_longest_of_each_id_is_told() -> None:
    """Which are sorted where they are many."""
    ids = [*[1, 2, 9, 2, 8, 1, 2, 7] * 30, 3, 1, 2]
    assert Matches(1, ALL, ids).lengths(300) == naive(ids, 1, ALL, 300) == {9: 2, 8: 1, 7: 2}


@pytest.mark.parametrize("ids", [[0] * MOST_COMPARED, [*range(1, MOST_COMPARED + 2)]])
def test_who_compares_one_by_one_gives_up_where_that_is_much(ids: list[int]) -> None:
    """One long match, or one id that goes on in many ways."""
    ids = [each for id_ in ids for each in (0, id_)] + [0]
    assert Repeats(1, ALL, ids).lengths(10**6) is None
    assert Matches(1, ALL, ids).lengths(10**6) == naive(ids, 1, ALL, 10**6)


@given(prompt=st.lists(FEW, max_size=12), steps=st.lists(FEW, max_size=12), key=st.integers(1, 9))
def test_what_is_taken_back_leaves_nothing(prompt: list[int], steps: list[int], key: int) -> None:
    """Not an entry of a table: a chat of thousands of drafts would fill the memory."""
    repeats, fresh = Repeats(key, ALL, prompt), Repeats(key, ALL, prompt)
    for id_ in steps:
        repeats.append(id_)
    for _ in steps:
        repeats.pop()
    assert vars(repeats) == vars(fresh)


def test_what_is_taken_back_leaves_no_room() -> None:
    """Where there are no tables."""

    def drafted(times: int) -> list[int]:
        matches = Matches(2, ALL, [0, 1, 2])
        for id_ in [0, 1, 2] * times:
            matches.append(id_)
            matches.pop()
        return [len(each) for each in vars(matches).values() if hasattr(each, "__len__")]

    assert drafted(1000) == drafted(1)


def test_a_token_is_told_without_looking_through_all_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """All places are compared once, and again behind what was taken back."""
    called = []
    original = Matches._find
    monkeypatch.setattr(Matches, "_find", lambda *given: called.append(1) or original(*given))
    matches = Matches(1, ALL, [0, 1] * 20)
    for id_ in [0, 1, 2] * 20:
        matches.append(id_)
        matches.lengths(9)
    assert len(called) == 1
    for _ in range(9):
        matches.pop()
    matches.append(0)
    matches.lengths(9)
    assert len(called) == 2
