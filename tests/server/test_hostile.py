"""Whatever callers send: an answer of theirs to mend, and never a failure of the server."""

from __future__ import annotations

import json
import socket
import time
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from edgerun.engine.chooser.params import all_options
from edgerun.server import body, text
from edgerun.server.chat import ChatFields
from edgerun.server.messages.request import MessageFields
from edgerun.server.responses.request import ResponseFields
from edgerun.server.text import TextFields
from tests.server.served import CHAT, MESSAGES, RESPONSES, TEXT, Served

NUMBERS = st.one_of(
    st.integers(-3, 3),
    st.sampled_from([2**31, 2**63, 2**64, -(2**63), 10**40, -(10**400), 1e308, -0.0, 1e-320, 0.5]),
)
LEAVES = st.one_of(st.none(), st.booleans(), NUMBERS, st.text(max_size=8), st.just("text"))
VALUES = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=6), inner, max_size=3)
    ),
    max_leaves=6,
)
MESSAGE = st.fixed_dictionaries(
    {},
    optional={
        "role": st.one_of(st.sampled_from(["user", "system", "assistant", "tool"]), LEAVES),
        "content": st.one_of(st.text(max_size=20), VALUES),
        "tool_calls": VALUES,
        "name": LEAVES,
    },
)
NAMES = [entry.name for entry in all_options()]
KINDS: dict[str, type[msgspec.Struct]] = {
    CHAT: ChatFields,
    TEXT: TextFields,
    RESPONSES: ResponseFields,
    MESSAGES: MessageFields,
}
FIELDS_OF = {path: [*NAMES, *kind.__struct_fields__] for path, kind in KINDS.items()}
FIELDS = sorted({name for names in FIELDS_OF.values() for name in names})
PATHS = {CHAT: "messages", TEXT: "prompt", RESPONSES: "input", MESSAGES: "messages"}
SAID = [{"role": "user", "content": "x"}]
ASKED: dict[str, Any] = {CHAT: SAID, TEXT: "x", RESPONSES: "x", MESSAGES: SAID}
ITEM = st.fixed_dictionaries(
    {},
    optional={
        "type": st.one_of(
            st.sampled_from(["message", "reasoning", "function_call", "function_call_output"]),
            LEAVES,
        ),
        "role": st.one_of(st.sampled_from(["user", "system", "assistant"]), LEAVES),
        **dict.fromkeys(("content", "summary", "output", "arguments", "call_id", "name"), VALUES),
    },
)
BLOCK = st.fixed_dictionaries(
    {"type": st.one_of(st.sampled_from(["text", "thinking", "tool_use", "tool_result"]), LEAVES)},
    optional=dict.fromkeys(
        ("text", "thinking", "id", "name", "input", "tool_use_id", "content", "is_error"), VALUES
    ),
)
TURN = st.fixed_dictionaries(
    {},
    optional={
        "role": st.one_of(st.sampled_from(["user", "system", "assistant"]), LEAVES),
        "content": st.one_of(st.text(max_size=9), st.lists(BLOCK, max_size=3), VALUES),
    },
)
PROMPTS: dict[str, st.SearchStrategy[Any]] = {
    CHAT: st.lists(MESSAGE, max_size=3),
    TEXT: st.one_of(st.text(max_size=9), st.lists(NUMBERS, max_size=3)),
    RESPONSES: st.one_of(st.text(max_size=9), st.lists(ITEM, max_size=3)),
    MESSAGES: st.lists(TURN, max_size=3),
}


SCHEMA = {"type": "object", "properties": {"a": {"enum": ["b", 1]}}, "required": ["a"]}
TOOL = {"type": "function", "name": "f", "function": {"name": "f", "parameters": SCHEMA}}
APT: dict[str, list[Any]] = {  # values that are right somewhere, so that others are looked at
    "stream": [True],
    "n": [2],
    "seed": [1],
    "stop": ["x", ["a", "b"]],
    "logprobs": [True, 2],
    "logit_bias": [{"97": -100}],
    "regex": ["[a-c]{2}"],
    "json_schema": [SCHEMA],
    "ignore_eos": [True],
    "response_format": [{"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}],
    "text": [{"format": {"type": "json_schema", "name": "x", "schema": SCHEMA}}],
    "tools": [[TOOL], [{"name": "f", "input_schema": SCHEMA}]],
    "tool_choice": ["required", "none", {"type": "any"}],
    "system": ["x", [{"type": "text", "text": "x"}]],
    "thinking": [{"type": "enabled", "budget_tokens": 1}, {"type": "disabled"}],
    "output_config": [{"format": {"type": "json_schema", "schema": SCHEMA}}],
}


def bodies_of(path: str) -> st.SearchStrategy[tuple[str, dict[str, Any]]]:
    """Bodies for a path: most have fields that it has, and something to reply to."""
    usual = st.just(ASKED[path])
    prompt = st.sampled_from([usual, usual, usual, PROMPTS[path], VALUES]).flatmap(lambda x: x)
    names = st.lists(st.sampled_from(9 * FIELDS_OF[path] + FIELDS), max_size=3)
    more = names.flatmap(
        lambda names: st.fixed_dictionaries({name: value_of(name) for name in names})
    )
    return st.builds(
        lambda prompt, more: (path, {"max_tokens": 2, **more, PATHS[path]: prompt}), prompt, more
    )


def value_of(name: str) -> st.SearchStrategy[Any]:
    """Any value, or one that suits a field."""
    return st.one_of(VALUES, st.sampled_from(APT[name])) if name in APT else VALUES


CASES = st.sampled_from(sorted(PATHS)).flatmap(bodies_of)


def check(client: Served, path: str, fields: Any) -> None:
    answer = client.post(
        path,
        content=json.dumps(fields).encode("utf-8", "surrogatepass"),
        headers={"Content-Type": "application/json"},
    )
    assert answer.status_code in (200, 400, 404), (answer.text, fields)
    for kind in ('"server_error"', '"api_error"'):
        assert kind not in answer.text, (answer.text, fields)  # in the middle of a stream
    if answer.status_code != 200:
        assert answer.json()["error"]["message"], fields


@settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(case=CASES)
def test_no_body_fails_the_server(client: Served, case: tuple[str, dict[str, Any]]) -> None:
    check(client, *case)


def test_a_defect_that_is_put_in_is_found(client: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """Or the others would find nothing."""
    good = text.as_options

    def defective(sampling: dict[str, Any]) -> dict[str, Any]:
        return good({name: +value for name, value in sampling.items()})

    @settings(max_examples=600, deadline=None, database=None, phases=[Phase.generate])
    @given(case=bodies_of(TEXT))  # where the defect is
    def run(case: tuple[str, dict[str, Any]]) -> None:
        check(client, *case)

    monkeypatch.setattr(text, "as_options", defective)
    with pytest.raises(AssertionError, match="this is a defect"):
        run()


@pytest.mark.slow
@pytest.mark.timeout(3600)
@settings(
    max_examples=20_000, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(case=CASES)
def test_no_body_of_many_fails_the_server(client: Served, case: tuple[str, dict[str, Any]]) -> None:
    check(client, *case)


@pytest.mark.parametrize("name", FIELDS)
def test_every_field_is_checked(client: Served, name: str) -> None:
    """Each alone: some may be any of these, but nothing makes the server ill."""
    for value in (-1, 0, 10**40, 1.5, "", "x", "\ud800", True, [], [[]], {}, {"a": {}}, [1, "a"]):
        for path, asked in PATHS.items():
            check(client, path, {asked: [], name: value})
            check(client, path, {"max_tokens": 1, asked: ASKED[path], name: value})


def answer_to_beginning(client: Served, length: int) -> bytes:
    """What comes back on a body of which only the first byte is sent."""
    head = (
        f"POST {CHAT} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        f"Content-Length: {length}\r\n\r\n{{"
    )
    with socket.create_connection((client.base_url.host, client.base_url.port or 80)) as connection:
        connection.settimeout(5)
        connection.sendall(head.encode())
        return connection.recv(4096)


@pytest.mark.parametrize(
    ("sent", "words"),
    [
        (b"", "the body is empty; expected a JSON object"),
        (b" \n", "the body is empty; expected a JSON object"),
        (b'{"content":"\\ud800"}', "half of a pair of surrogates"),
        (b'{"content":"\\ud800\\n"}', "half of a pair of surrogates"),
        (b'{"content":"\\udc00 and more of it"}', "half of a pair of surrogates"),
        (b'{"content":"\\ud83d', "the body is no JSON: Input data was truncated"),
        (b'{"content":"\\\\ud800 is half', "the body is no JSON: Input data was truncated"),
    ],
)
def test_a_body_that_is_no_json_is_called_what_it_is(sent: bytes, words: str) -> None:
    with pytest.raises(msgspec.DecodeError) as error:
        msgspec.json.decode(sent)
    assert words in body._why_no_json(sent, error.value)


def test_a_body_that_does_not_come_is_given_up(
    client: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(body, "BODY_S", 0.1)
    assert b" 408 " in answer_to_beginning(client, 1000)


def test_a_body_that_is_said_to_be_too_large_is_not_waited_for(client: Served) -> None:
    assert b" 413 " in answer_to_beginning(client, 1_000_000_000)


@pytest.mark.parametrize(
    "fields",
    [
        {"x" * 1_000_000: 1},
        {"model": "x" * 1_000_000},
        {"model": "x " * 500_000},
        {"stream_options": {"x" * 1_000_000: 1}},
        {"stream_options": {"x " * 500_000: 1}},
        {"logit_bias": {"x" * 1_000_000: 1}},
        {"tool_choice": "x" * 1_000_000},
        {"reasoning_effort": "x" * 1_000_000},
        {"chat_template_kwargs": {"x" * 1_000_000: 1}},
        {"response_format": {"type": "x" * 1_000_000}},
    ],
    ids=lambda fields: next(iter(fields))[:20],
)
def test_a_name_of_a_million_letters_is_neither_compared_nor_repeated(
    client: Served, fields: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    compared: list[int] = []

    def compare(name: str, *_: Any) -> list[str]:
        compared.append(len(name))
        return []

    monkeypatch.setattr("difflib.get_close_matches", compare)
    answer = client.chat(max_tokens=1, **fields)
    assert answer.status_code in (400, 404)
    assert len(answer.content) < 5000
    assert max(compared, default=0) < 1000


@pytest.mark.parametrize("part", ["[],", "{},", "1,", '"",'])
def test_a_body_of_many_parts_is_refused_before_they_take_memory(
    client: Served, part: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A body of 24 MB, as of a model with a context of a million, took 1.1 GB and 4 s of all."""
    monkeypatch.setattr(body, "LEAST_PARTS", 2000)
    headers = {"Content-Type": "application/json"}
    text = json.dumps({"messages": [{"role": "user", "content": "[{," * 90_000}], "n": 129})
    assert client.post(CHAT, content=text, headers=headers).status_code == 400
    monkeypatch.setattr(body.msgspec.json, "decode", None)
    answer = client.post(CHAT, content=f'{{"messages": [{part * 90_000}1]}}', headers=headers)
    assert answer.status_code == 413
    assert "87380 lists, objects and items" in answer.json()["error"]["message"]


def test_what_is_refused_is_refused_at_once(client: Served) -> None:
    """Numbers without end, large bodies: nothing is computed for them."""
    deep = {"messages": [{"role": "user", "content": "x"}], "json_schema": {"type": ["x"] * 9}}
    wide = {"messages": [{"role": "user", "content": "x " * 300_000}]}
    many = {"messages": [{"role": "user", "content": "x"}] * 10_000}
    for fields in ({"messages": [], "n": 10**9}, deep, wide, many):
        began = time.perf_counter()
        check(client, CHAT, fields)
        assert time.perf_counter() - began < 5  # of a machine that others use, too
