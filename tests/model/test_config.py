"""``generation_config.json`` and its like may hold anything."""

from __future__ import annotations

from typing import Any

import pytest

from edgerun.errors import BundleError
from edgerun.model.config import eos_ids, read_json_object


def test_a_file_that_is_missing_says_nothing() -> None:
    assert read_json_object("config.json", None) == {}
    assert read_json_object("config.json", '{"a": [1, null]}') == {"a": [1, None]}


@pytest.mark.parametrize("text", ["", "{", "nope", "[" * 100_000, f'{{"a": {"1" * 5000}}}'])
def test_what_is_no_json_is_refused(text: str) -> None:
    with pytest.raises(BundleError, match="config.json is not JSON"):
        read_json_object("config.json", text)


@pytest.mark.parametrize(
    ("text", "kind"), [("[]", "list"), ("null", "NoneType"), ("1", "int"), ('"{}"', "str")]
)
def test_what_is_no_object_is_refused(text: str, kind: str) -> None:
    with pytest.raises(BundleError, match=f"config.json holds {kind}; expected an object"):
        read_json_object("config.json", text)


@pytest.mark.parametrize(
    ("value", "ids"),
    [
        (None, ()),
        (2, (2,)),
        (0, (0,)),
        ([0, 7], (0, 7)),
        (-1, ()),
        ([1, -1, None, "2", 3.0, True, [4]], (1,)),
        ({"a": 1}, ()),
    ],
)
def test_only_ids_end_a_reply(value: Any, ids: tuple[int, ...]) -> None:
    assert eos_ids({"eos_token_id": value}) == ids
    assert eos_ids({}) == ()
