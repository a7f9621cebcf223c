"""Stop texts are found wherever the borders of tokens fall."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from edgerun.model.text.stop_text import StopText

LETTERS = st.text(alphabet="abc", max_size=30)
STOPS = st.lists(st.text(alphabet="abc", min_size=1, max_size=4), max_size=3)


def cut(text: str, stops: list[str]) -> str:
    """The text before the first occurrence of a stop text, by trying every place."""
    for place in range(len(text)):
        if any(text.startswith(stop, place) for stop in stops):
            return text[:place]
    return text


@given(text=LETTERS, stops=STOPS, data=st.data())
def test_text_ends_before_the_first_stop_text(
    text: str, stops: list[str], data: st.DataObject
) -> None:
    stop = StopText(stops)
    shown, rest = "", text
    while rest:
        length = data.draw(st.integers(1, len(rest)))
        shown += stop.push(rest[:length])
        rest = rest[length:]
    shown += stop.finish()
    # A stop text that begins earlier may be complete later than another one is.
    assert shown == cut(text, stops) or (stop.stopped and text.startswith(shown))
    assert stop.stopped == (cut(text, stops) != text)
    assert not any(stop_text in shown for stop_text in stops)


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
