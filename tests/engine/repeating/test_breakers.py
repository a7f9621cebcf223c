"""Where texts end, against a definition that looks at everything before a token."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgerun.engine.chooser.repeating import breakers
from edgerun.engine.chooser.repeating.breakers import START, Breakers

TOKENS = [b"a", b"b", b"aa", b"ab", b"ba", b"aab", b"abba", b"", b"c"]
CONTROL = len(TOKENS)


class Spelled:
    """A vocabulary whose last token is a control token that spells nothing."""

    control_ids = frozenset([CONTROL])

    def token_bytes(self, id_: int) -> bytes:
        return [*TOKENS, b""][id_]


def naive(ids: list[int], texts: tuple[str, ...]) -> bool:
    """Whether the last id is a control token, or a text ends within it."""
    spelled = [Spelled().token_bytes(id_) for id_ in ids]
    whole, before = b"".join(spelled), len(b"".join(spelled[:-1]))
    ends = range(before + 1, len(whole) + 1)
    return ids[-1] == CONTROL or any(
        whole[:end].endswith(text.encode()) for end in ends for text in texts
    )


@pytest.mark.parametrize("most_steps", [1, breakers.MOST_STEPS])
@given(
    texts=st.lists(st.text("ab", min_size=1, max_size=6), max_size=5),
    ids=st.lists(st.integers(0, CONTROL), max_size=30),
)
def test_texts_end_where_they_do_in_all_that_was_said(
    most_steps: int, texts: list[str], ids: list[int]
) -> None:
    """However tokens cut them, and however few steps are remembered."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(breakers, "MOST_STEPS", most_steps)
        sought, state = Breakers(tuple(texts), Spelled()), START  # type: ignore[arg-type]
        for length in range(1, len(ids) + 1):
            state, breaks = sought.step(state, ids[length - 1])
            assert breaks == naive(ids[:length], tuple(texts))


def test_behind_a_text_that_no_longer_one_begins_with_all_is_as_at_the_start() -> None:
    """So that of the usual breakers, which are one byte, every token is looked at once."""
    assert Breakers(("a", "b"), Spelled()).step(START, 0) == (START, True)  # type: ignore[arg-type]
    assert Breakers(("a", "ab"), Spelled()).step(START, 0).state != START  # type: ignore[arg-type]
