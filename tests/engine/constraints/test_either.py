"""Replies of one form or another: what may follow is what may follow in one of them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgerun.engine.chooser.candidates import Candidates
from edgerun.engine.constraints.either import EitherForm
from edgerun.engine.sampling.structure import Structure
from edgerun.errors import ConstraintError, SamplingError
from tests.engine.constraints.vocabularies import EOS, spelled

pytest.importorskip("llguidance")

# One begins with what is whole in another, and goes on as the other does.
FORMS: list[dict[str, Any]] = [
    {"regex": "ab?c"},
    {"regex": "a(d|b)*"},
    {"grammar": 'start: "{\\"name\\": " /[0-9]/ "}"'},
    {"json_schema": {"type": "object", "additionalProperties": {"const": 1}}},
]


def allowed(filter_: Any, size: int) -> set[int]:
    """Ids with which a text may go on, the end among them; none where there are none."""
    logits = np.zeros(size, np.float32)
    try:
        filter_.apply(Candidates(logits))
    except ConstraintError:
        return set()
    return {int(id_) for id_ in np.flatnonzero(logits == 0)}


@settings(max_examples=60)
@given(st.data())
def test_what_may_follow_is_what_may_follow_in_one_of_them(data: st.DataObject) -> None:
    vocabulary = spelled([b"ab", b"c", b"d", b"1", b"{", b"}", b'{"', b'name"', b'": '])
    size = vocabulary.vocab_size
    chosen = data.draw(st.lists(st.sampled_from(FORMS), min_size=2, max_size=3, unique_by=str))
    forms = tuple(Structure(**form).with_vocabulary(vocabulary) for form in chosen)
    either: Any = EitherForm("both", forms).with_vocabulary(vocabulary).begin([], size)
    single: list[Any] = [form.begin([], size) for form in forms]
    for filter_ in (either, *single):
        filter_.end_with([EOS])
    ids: list[int] = []
    for _ in range(12):
        expected = set[int]().union(*(allowed(filter_, size) for filter_ in single))
        assert allowed(either, size) == expected
        if ids and data.draw(st.integers(0, 4)) == 0:
            last = ids.pop()
            for filter_ in (either, *single):
                filter_.undo(last)
            continue
        choices = sorted(expected - {EOS}) or list(range(size))
        ids.append(data.draw(st.sampled_from(choices)))
        for filter_ in (either, *single):
            filter_.accept(ids[-1])


def test_a_reply_is_complete_when_no_form_goes_on() -> None:
    vocabulary = spelled([])
    forms = tuple(Structure(regex=regex).with_vocabulary(vocabulary) for regex in ("ab", "aba?"))
    size = vocabulary.vocab_size
    either: Any = EitherForm("both", forms).with_vocabulary(vocabulary).begin([], size)
    either.end_with([EOS])
    completeness = []
    for letter in b"aba":
        either.accept(vocabulary.tokens.index(bytes([letter])))
        completeness.append(either.is_complete())
    assert completeness == [False, False, True]
    either.undo(0)
    assert not either.is_complete()


def test_nothing_begins_without_a_vocabulary() -> None:
    forms = (Structure(regex="a"), Structure(regex="b"))
    with pytest.raises(SamplingError, match="both: nothing says what tokens spell"):
        EitherForm("both", forms).begin([], 10)
