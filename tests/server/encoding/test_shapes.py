"""Which requests ask for a form, and how much of it all replies together may have."""

from __future__ import annotations

from typing import Any

import pytest

from edgerun.llm.llm import LLM
from edgerun.server import replies
from edgerun.server.encoding.shapes import shape_of
from tests.server.served import TEXT, Paced, served, until
from tests.support import fakes

TOOLS = [{"type": "function", "function": {"name": "f"}}]


@pytest.mark.parametrize(
    ("sampling", "tools", "choice", "is_shape"),
    [
        ({"temperature": 1}, None, "auto", False),
        ({}, TOOLS, "auto", False),
        ({}, TOOLS, "none", False),
        ({}, [], "required", False),
        ({}, TOOLS, "required", True),
        ({}, TOOLS, {"type": "function", "function": {"name": "f"}}, True),
        ({"json_schema": False}, None, "auto", True),
        ({"regex": "a"}, None, "auto", True),
        ({"grammar": "root ::= [a]"}, None, "auto", True),
    ],
)
def test_forms_are_schemas_expressions_grammars_and_calls(
    sampling: dict[str, Any], tools: Any, choice: Any, is_shape: bool
) -> None:
    assert (shape_of(sampling, 1, tools, choice) is not None) == is_shape


def test_forms_are_the_same_for_as_many_replies() -> None:
    digests = {
        shape.digest
        for sampling, count in (({"regex": "a"}, 1), ({"regex": "a"}, 2), ({"grammar": "a"}, 1))
        if (shape := shape_of(sampling, count)) is not None
    }
    assert len(digests) == 3
    assert shape_of({"regex": "a"}, 1) == shape_of({"regex": "a", "seed": 1}, 1)


def test_functions_have_a_form_where_a_schema_stands_beside_them() -> None:
    schema: dict[str, Any] = {"json_schema": {}}
    alone, beside = shape_of(schema, 1), shape_of(schema, 1, TOOLS)
    assert alone is not None and beside is not None and alone.digest != beside.digest
    assert shape_of(schema, 1, TOOLS, "none") == alone


def test_calls_are_as_long_as_their_grammar() -> None:
    """That of 31 KB of functions has 70 to 85 KB, and waits for long ones."""
    tools = [{"type": "function", "function": {"name": f"f{number}"}} for number in range(600)]
    required = shape_of({}, 1, tools, "required")
    assert required is not None and required.size_bytes > 85_000
    alone = shape_of({}, 1, tools, "required", several=False)
    assert alone is not None and alone.digest != required.digest


def test_what_cannot_be_written_has_a_form_too() -> None:
    deep: Any = []
    for _ in range(100_000):
        deep = [deep]
    assert shape_of({"json_schema": {"a": deep}}, 1) is not None


def test_forms_of_all_replies_together_have_a_size(monkeypatch: pytest.MonkeyPatch) -> None:
    """A schema of 1 MB takes 100 MB of memory: replies to 68 requests would take 7 GB."""
    monkeypatch.setattr(replies, "MOST_FORM_BYTES", 1000)
    executable = Paced()
    with served(LLM(fakes.fake_model(executable, max_sessions=1))) as client:
        regex = f"[ab]{{20}}|{'c' * 700}"
        body = {"prompt": "x", "stream": True, "n": 2, "regex": regex}
        executable.let(23)  # the first reply ends, the second does not
        with client.stream("POST", TEXT, json=body) as running:
            until(lambda: client.server.replies.under_way == 1)
            more = client.text("x", regex=regex)
            assert more.status_code == 429
            assert int(more.headers["Retry-After"]) >= 1
            assert "follow schemas and grammars of 7" in more.json()["error"]["message"]
            executable.let()
            running.read()
        until(lambda: client.server.replies.under_way == 0)
        assert client.server.replies._form_bytes == 0
        assert client.text("x", n=2, regex=regex).status_code == 200
        assert client.text("x", n=2, regex="(" + regex).status_code == 400  # leaves nothing
        assert client.server.replies._form_bytes == 0
