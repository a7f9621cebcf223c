"""Stop texts are found wherever the borders of tokens fall."""

from __future__ import annotations

import tracemalloc

from hypothesis import given
from hypothesis import strategies as st

from edgerun.model.text.stop_text import StopText

LETTERS = st.text(alphabet="abc", max_size=30)
STOPS = st.lists(st.text(alphabet="abc", min_size=1, max_size=5), max_size=4)


def cut(text: str, stops: list[str]) -> tuple[str, str | None]:
    """The text before the stop text that is complete first, by trying every end; and that."""
    for end in range(1, len(text) + 1):
        complete = [stop for stop in stops if text[:end].endswith(stop)]
        if complete:
            longest = max(complete, key=len)
            return text[: end - len(longest)], longest
    return text, None


@given(text=LETTERS, stops=STOPS, data=st.data())
def test_text_ends_before_the_stop_text_that_is_complete_first(
    text: str, stops: list[str], data: st.DataObject
) -> None:
    stop = StopText(stops)
    shown, rest = "", text
    while rest:
        length = data.draw(st.integers(1, len(rest)))
        shown += stop.push(rest[:length])
        rest = rest[length:]
        assert cut(text, stops)[0].startswith(shown)
    shown += stop.finish()
    assert (shown, stop.ended_by) == cut(text, stops)
    assert stop.stopped == any(each in text for each in stops)


def test_a_text_ends_at_the_same_place_however_it_is_cut() -> None:
    whole, letters = StopText(["xaby", "ab"]), StopText(["xaby", "ab"])
    assert whole.push("xaby") == "x"
    assert "".join(map(letters.push, "xaby")) == "x"


def test_of_stop_texts_complete_together_the_one_that_begins_first_ends_the_text() -> None:
    assert StopText(["b", "ab", "xab"]).push("yxab") == "y"


def test_long_stop_texts_take_no_more_memory_than_a_number_a_character() -> None:
    stops = [f"{number:04}" + "ab" * 2046 for number in range(16)]
    tracemalloc.start()
    try:
        stop = StopText(stops)
        text = "".join(stop.push(piece) for each in stops[:4] for piece in (each[:-1], "!"))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert len(text) == 4 * 4096
    assert peak < 2_000_000


def test_a_stop_text_that_nearly_comes_is_read_once() -> None:
    stop = StopText(["a" * 4095 + "b"])
    text = "".join(stop.push("a") for _ in range(20_000))  # seconds where each push looks back
    assert len(text) == 20_000 - 4095
    assert stop.push("b") == ""
    assert stop.stopped


def test_only_what_may_become_a_stop_text_is_held_back() -> None:
    stop = StopText(["END"])
    assert [stop.push(piece) for piece in ("a E", "N", "x", "E", "ND more")] == [
        "a ",
        "",
        "ENx",
        "",
        "",
    ]
    assert stop.stopped
    assert stop.push("never") == ""


def test_without_stop_texts_everything_passes_at_once() -> None:
    stop = StopText([])
    assert (stop.push("abc"), stop.finish()) == ("abc", "")
