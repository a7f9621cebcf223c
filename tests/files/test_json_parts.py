"""Parts of JSON are counted as a reader would make them."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgerun.files import json_parts
from edgerun.files.json_parts import has_more_parts


@given(st.lists(st.text('[{,"\\\\a'), max_size=20), st.integers(1, 9))
def test_texts_have_no_parts(texts: list[str], chunk_bytes: int) -> None:
    data = json.dumps(texts).encode()
    parts = max(1, len(texts))  # an opening bracket, and commas
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(json_parts, "CHUNK_BYTES", chunk_bytes)
        assert not has_more_parts(data, parts)
        assert has_more_parts(data, parts - 1)


@pytest.mark.parametrize(
    ("data", "parts"),
    [
        (b"", 0),
        (b"1", 0),
        (b"[[[", 3),
        (b'{"a":{"b":[]}}', 3),
        (b'"[[[', 0),
        (b"\xff,\x00,", 2),
    ],
)
def test_what_is_no_json_has_parts_too(data: bytes, parts: int) -> None:
    assert [has_more_parts(data, most) for most in (parts - 1, parts)] == [True, False]
