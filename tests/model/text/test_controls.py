"""Control tokens are found as if one name after the other were tried, however many there are."""

from __future__ import annotations

import time
from collections.abc import Iterable

from hypothesis import given
from hypothesis import strategies as st

from edgerun.model.text.controls import ControlTokens
from edgerun.model.text.facts import AddedToken

MANY = [f"<unused{index}>" for index in range(6000)]


def controls_of(names: Iterable[str]) -> ControlTokens:
    return ControlTokens.of(
        AddedToken(id_, name, False, False, False) for id_, name in enumerate(names)
    )


def names_in(text: str, names: Iterable[str]) -> list[str]:
    """The longest at the leftmost place, and so on behind it."""
    listed, place = [], 0
    while place < len(text):
        longest = max((name for name in names if text.startswith(name, place)), key=len, default="")
        listed += [longest] if longest else []
        place += len(longest) or 1
    return listed


@given(st.data())
def test_the_longest_at_the_leftmost_place_counts(data: st.DataObject) -> None:
    letters = data.draw(st.sampled_from(["<", "<|", "<|>a"]))
    names = data.draw(st.sets(st.text(letters, min_size=2, max_size=30), max_size=30))
    names = {f"{name}." for name in names} | {"<<", "<" * 25}
    text = data.draw(st.text(letters + ".", max_size=80))
    controls = controls_of(names)
    assert controls.names_in(text) == names_in(text, names)
    assert controls.tags([]).split(text)[1::2] == names_in(text, names)
    inner = data.draw(st.text(letters, max_size=4)).strip()
    assert controls.is_part(inner) == (inner != "" and any(inner in name for name in names))


def test_thousands_of_names_take_no_longer_than_few() -> None:
    """As many as Gemma 3 has, in a reply that is a page of HTML."""
    controls, tags = controls_of(["[bos]", *MANY]), controls_of(["[bos]", *MANY]).tags([])
    page = "<p>x</p>\n" * 20_000 + MANY[123]
    start = time.process_time()
    assert controls.names_in(page) == tags.split(page)[1::2] == [MANY[123]]
    assert not any(controls.is_part(f"field {index}") for index in range(1000))
    assert time.process_time() - start < 0.5
