"""Events of ``/v1/messages``: the same as the whole; and what fails, or ends, in the middle."""

from __future__ import annotations

import itertools
import json
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from edgerun.llm.llm import LLM
from edgerun.llm.replies.completion import Completion, Part
from edgerun.model.chat.tools.call import ToolCall
from edgerun.server.messages.answer import BlockWriter, content_of
from tests.llm.chats.test_thinking import CHAT, HARMONY, REPLY, that_says
from tests.llm.chats.test_tools import CALL, hermes_that_says
from tests.server.messages.test_messages import FLAT, USER, ask
from tests.server.responses.test_events import TURNS, Breaking, Endless, cuts_of, harmonious
from tests.server.served import MESSAGES, Served, served, until
from tests.support import fakes

STARTED, STOPPED = "content_block_start", "content_block_stop"


@pytest.fixture(scope="module")
def thinking() -> Iterator[Served]:
    with pytest.MonkeyPatch.context() as patch, served(that_says(REPLY, patch, CHAT)) as client:
        yield client


def events_of(text: str) -> list[Any]:
    """The events of a stream, whose names are those of their types."""
    events = []
    for block in text.removesuffix("\n\n").split("\n\n"):
        name, data = block.split("\n")
        events.append(json.loads(data.removeprefix("data: ")))
        assert name == f"event: {events[-1]['type']}"
    return events


def content_from(events: Sequence[Any]) -> list[Any]:
    """The blocks that events make up, one after the other."""
    content: list[Any] = []
    is_open = False
    for event in events:
        if event["type"] == STARTED:
            assert not is_open and event["index"] == len(content)
            content.append(dict(event["content_block"]))
        assert event["index"] == len(content) - 1
        is_open = event["type"] != STOPPED
        if event["type"] != "content_block_delta":
            continue
        ((name, more),) = [each for each in event["delta"].items() if each[0] != "type"]
        if name == "partial_json":
            content[-1]["input"] = json.loads(more)
        else:
            content[-1][name] += more
    assert not is_open
    return content


def message_from(events: Sequence[Any]) -> Any:
    """The message that all events of a stream make up."""
    first, *middle, delta, last = events
    assert (first["type"], delta["type"]) == ("message_start", "message_delta")
    assert last == {"type": "message_stop"}
    message = first["message"]
    assert message["content"] == [] and message["stop_reason"] is None
    assert message["usage"].items() <= {**delta["usage"], "output_tokens": 1}.items()
    return {**message, "content": content_from(middle), **delta["delta"], "usage": delta["usage"]}


def without_ids(message: Any) -> Any:
    content = [{key: block[key] for key in block if key != "id"} for block in message["content"]]
    return {**message, "id": "", "content": content}


def test_events_make_up_the_message(thinking: Served) -> None:
    with served(hermes_that_says(f"Let me see.\n{CALL}{CALL}")) as calling:
        for client, fields in (
            (thinking, {}),
            (thinking, {"max_tokens": 3}),
            (thinking, {"stop_sequences": ["!"]}),
            (calling, {"tools": FLAT}),
        ):
            ask(client, **fields)  # so that the cache has the prompt of both others
            whole = ask(client, **fields).json()
            events = events_of(ask(client, stream=True, **fields).text)
            events[0]["message"]["usage"]["output_tokens"] = 1  # or as many as came at first
            assert without_ids(message_from(events)) == without_ids(whole)


@pytest.mark.parametrize("turns", TURNS.values(), ids=list(TURNS))
def test_blocks_come_one_after_the_other(turns: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """However a reply is cut, all of it comes, and no block goes on when another has begun."""
    with that_says(harmonious(turns), monkeypatch, HARMONY) as llm:
        stream = llm.stream_chat([USER])
        parts, completion = list(stream.parts()), stream.completion
    texts = {"thinking": completion.thinking, "text": completion.text}
    for pieces in cuts_of(parts):
        content = content_from(written(pieces, completion))
        kinds = [block["type"] for block in content]
        assert all(kind != other for kind, other in itertools.pairwise(kinds))
        for kind, text in texts.items():
            assert "".join(block[kind] for block in content if block["type"] == kind) == text


def written(parts: Sequence[Part], completion: Completion) -> list[Any]:
    writer = BlockWriter()
    events: list[Any] = []
    for part in parts:
        texts = {"thinking": part.thinking, "text": part.text}
        events += writer.said(texts, answers_first=completion.answers_first)
    return [*events, *writer.rest(completion.tool_calls)]


@pytest.mark.parametrize(
    ("text", "calls", "kinds"),
    [
        ("", 0, ["text"]),
        ("", 2, ["tool_use"] * 2),
        ("a", 1, ["text", "tool_use"]),
    ],
)
def test_a_reply_has_at_least_one_block(text: str, calls: int, kinds: list[str]) -> None:
    each = [ToolCall(str(index), "f", '{"a": "é\\ud800"}') for index in range(calls)]
    completion = Completion(text, finish_reason="stop", tool_calls=each)
    assert [block["type"] for block in content_of(completion)] == kinds
    content = content_from(written([Part(text)], completion))
    assert [block["type"] for block in content] == kinds


@pytest.fixture(scope="module")
def broken(thinking: Served) -> Iterator[Served]:
    """After the other, which changes how many tokens all models have."""
    with served(LLM(fakes.fake_model(Breaking(), template=CHAT))) as client:
        yield client


def test_what_fails_before_the_first_token_has_a_status(broken: Served) -> None:
    for stream in (False, True):
        answer = ask(broken, messages=[{"role": "user", "content": "^"}], stream=stream)
        assert answer.status_code == 500
        assert answer.json()["type"] == "error"
        assert answer.json()["error"]["type"] == "api_error"


def test_what_fails_in_the_middle_is_an_event(broken: Served) -> None:
    first, *_, last = events_of(ask(broken, stream=True).text)
    assert (first["type"], last["type"]) == ("message_start", "error")
    assert last["error"]["type"] == "api_error"
    assert last["error"]["message"].startswith("the model failed: ")


@pytest.mark.parametrize("calls", [0, 20])
def test_a_server_that_stops_says_so_by_a_status_or_an_event(calls: int) -> None:
    executable, lines = Endless(), list[str]()
    body = {"messages": [USER], "max_tokens": 10_000, "stream": True}

    def call() -> None:
        with client.stream("POST", MESSAGES, json=body) as answer:
            lines.append(str(answer.status_code))
            lines.extend(answer.iter_lines())

    with served(LLM(fakes.fake_model(executable, template=CHAT))) as client:
        caller = threading.Thread(target=call)
        caller.start()
        executable.let(calls)
        until(lambda: client.server.replies.under_way == 1 and bool(lines) == bool(calls))
        client.stop()
        until(lambda: client.server.replies.is_stopped)
        executable.let()
        caller.join(30)
    assert lines[0] == ("200" if calls else "503")
    last = events_of("\n".join(lines[1:]) + "\n")[-1] if calls else json.loads(lines[1])
    assert last["error"]["type"] == "overloaded_error"
    assert "being stopped" in last["error"]["message"]


def test_a_caller_who_goes_away_ends_the_reply() -> None:
    executable = Endless()
    with served(LLM(fakes.fake_model(executable, template=CHAT))) as client:
        executable.let(20)
        body = {"messages": [USER], "max_tokens": 10_000, "stream": True}
        with client.stream("POST", MESSAGES, json=body) as answer:
            came = answer.iter_lines()  # with which the connection would end
            next(came)
            assert client.server.replies.under_way == 1
        executable.let(1000)
        until(lambda: client.server.replies.under_way == 0)
        assert "cancelled" in client.get("/metrics").text
