"""Events of ``/v1/responses``: the same as the whole, however a reply is cut; and what fails."""

from __future__ import annotations

import asyncio
import itertools
import json
import threading
from collections.abc import AsyncIterator, Iterator, Sequence
from types import SimpleNamespace
from typing import Any, TypeAlias

import pytest

from edgerun.errors import BackendError
from edgerun.llm.llm import LLM
from edgerun.llm.replies.completion import Completion, Part
from edgerun.model.chat.tools.call import ToolCall
from edgerun.server.responses.answer import _Writer, output_of
from edgerun.server.responses.functions import functions_of
from tests.llm.chats.test_thinking import CHAT, HARMONY, REPLY, that_says
from tests.model.chat.tools.replies import MESSAGES
from tests.server.responses.test_responses import QUESTION, ask, check, events_of, without_ids
from tests.server.served import RESPONSES, Paced, Served, served, until
from tests.support import fakes

THINKS, SAYS = "<|channel|>analysis<|message|>", "<|channel|>final<|message|>"
NEXT = "<|end|><|start|>assistant"
NO_FUNCTIONS = functions_of(None)
# A model of channels may think again when it has said something, or say something at first.
TURNS = {
    "thinks twice": ((THINKS, "A"), (THINKS, "B"), (SAYS, "C")),
    "thinks again": ((THINKS, "A"), (SAYS, "B"), (THINKS, "C"), (SAYS, "D")),
    "says first": ((SAYS, "A"), (THINKS, "B"), (SAYS, "C")),
    "thinks at last": ((SAYS, "A"), (THINKS, "B")),
}
Turns: TypeAlias = Sequence[tuple[str, str]]


def harmonious(turns: Turns) -> str:
    return NEXT.join(map("".join, turns))


class Cut:
    """A group whose only reply came in these pieces."""

    def __init__(self, parts: Sequence[Part], completion: Completion) -> None:
        self.completions = [completion]
        self._parts = parts

    async def pieces(self) -> AsyncIterator[Any]:
        for part in self._parts:
            yield SimpleNamespace(part=part)


def cuts_of(parts: Sequence[Part]) -> Iterator[list[Part]]:
    """All ways in which a pump may have put parts together."""
    for joined in itertools.product((False, True), repeat=len(parts) - 1):
        pieces = [parts[0]]
        for part, is_joined in zip(parts[1:], joined, strict=True):
            if is_joined:
                before = pieces.pop()
                part = Part(before.text + part.text, before.thinking + part.thinking)
            pieces.append(part)
        yield pieces


def written(parts: Sequence[Part], completion: Completion) -> list[Any]:
    """The events of a reply that came in these pieces."""

    async def write() -> list[Any]:
        writer = _Writer(lambda status, output, *_: {"output": list(output)}, NO_FUNCTIONS)
        group: Any = Cut(parts, completion)
        return [event async for event in writer.events(group)]

    return asyncio.run(write())


@pytest.mark.parametrize("is_cut", [False, True])
@pytest.mark.parametrize("turns", TURNS.values(), ids=list(TURNS))
def test_items_are_the_same_however_a_reply_is_cut(
    turns: Turns, is_cut: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    with that_says(harmonious(turns), monkeypatch, HARMONY) as llm:
        tokens = len(llm.chat(MESSAGES).ids)
        stream = llm.stream_chat(MESSAGES, max_tokens=tokens if is_cut else tokens + 1)
        parts, completion = list(stream.parts()), stream.completion
    assert completion.finish_reason == ("length" if is_cut else "stop")
    output = output_of(completion, NO_FUNCTIONS)
    kinds = ["message", "reasoning"] if turns[0][0] == SAYS else ["reasoning", "message"]
    assert [item["type"] for item in output] == kinds[: len(output)]
    for pieces in cuts_of(parts):
        events = written(pieces, completion)
        done = events[-1]["response"]["output"]
        check(events, done)
        assert without_ids(done) == without_ids(output)


def test_a_server_tells_both_the_same() -> None:
    for turns in TURNS.values():
        with (
            pytest.MonkeyPatch.context() as patch,
            served(that_says(harmonious(turns), patch, HARMONY)) as client,
        ):
            whole = ask(client).json()
            events = events_of(ask(client, stream=True).text)
        texts = [item["content"][0]["text"] for item in whole["output"]]
        said = {"reasoning": THINKS, "message": SAYS}
        assert texts == [
            "\n\n".join(text for kind, text in turns if kind == said[each])
            for each in (item["type"] for item in whole["output"])
        ]
        check(events, events[-1]["response"]["output"])
        assert without_ids(events[-1]["response"]["output"]) == without_ids(whole["output"])


def completion_of(reason: str, text: str, thinking: str, first: bool, calls: int) -> Completion:
    each = [ToolCall("1", "f", "{}") for _ in range(calls)]
    return Completion(
        text, finish_reason=reason, thinking=thinking, answers_first=first, tool_calls=each
    )


@pytest.mark.parametrize(
    ("reason", "text", "thinking", "first", "calls", "items"),
    [
        ("stop", "a", "b", False, 0, ["reasoning completed", "message completed"]),
        ("length", "a", "b", False, 0, ["reasoning completed", "message incomplete"]),
        ("context", "a", "b", True, 0, ["message completed", "reasoning incomplete"]),
        ("length", "", "b", False, 0, ["reasoning incomplete"]),
        ("memory", "", "b", False, 1, ["reasoning completed", "function_call completed"]),
        ("length", "a", "", True, 1, ["message incomplete", "function_call completed"]),
        ("stop", "", "", False, 0, ["message completed"]),
        ("length", "", "", False, 0, ["message incomplete"]),
        ("stop", "", "", False, 2, ["function_call completed"] * 2),
    ],
)
def test_what_was_cut_off_is_incomplete(
    reason: str, text: str, thinking: str, first: bool, calls: int, items: Any
) -> None:
    completion = completion_of(reason, text, thinking, first, calls)
    output = output_of(completion, NO_FUNCTIONS)
    assert [f"{item['type']} {item['status']}" for item in output] == items
    events = written([Part(text, thinking)], completion)
    check(events, events[-1]["response"]["output"])
    assert without_ids(events[-1]["response"]["output"]) == without_ids(output)
    assert events[-1]["type"] == f"response.{'completed' if reason == 'stop' else 'incomplete'}"


def test_a_reply_that_is_cut_off_has_thoughts_that_are_whole() -> None:
    with pytest.MonkeyPatch.context() as patch, served(that_says(REPLY, patch, CHAT)) as client:
        most = ask(client).json()["usage"]["output_tokens"] - 1
        whole = ask(client, max_output_tokens=most).json()
        events = events_of(ask(client, max_output_tokens=most, stream=True).text)
    assert whole["status"] == "incomplete"
    for output in (whole["output"], events[-1]["response"]["output"]):
        assert [item["status"] for item in output] == ["completed", "incomplete"]


class Breaking(fakes.FakeExecutable):
    """Fails of a ^, which a prompt may have, and with which its replies end."""

    def __call__(self, batch: Any, *arguments: Any) -> Any:
        if ord("^") in batch.ids:
            raise BackendError("the device is gone")
        return super().__call__(batch, *arguments)

    def _next(self, ids: list[int]) -> int:
        said = bytes(id_ % 256 for id_ in ids).rpartition(b"assistant\n")[2]
        return b"Well, ^"[len(said) % 7]


@pytest.fixture(scope="module")
def broken() -> Iterator[Served]:
    with served(LLM(fakes.fake_model(Breaking(), template=CHAT))) as client:
        yield client


def test_what_fails_before_the_first_token_has_a_status(broken: Served) -> None:
    answers = [ask(broken, input="^", stream=stream) for stream in (False, True)]
    for answer in answers:
        assert answer.status_code == 500
        assert answer.json() == answers[0].json()
    assert "the model failed" in answers[0].json()["error"]["message"]
    openai = pytest.importorskip("openai")
    url = str(broken.base_url.join("/v1"))
    with (
        openai.OpenAI(base_url=url, api_key="none", max_retries=0) as api,
        pytest.raises(openai.InternalServerError, match="the model failed"),
    ):
        api.responses.create(model="fake", input="^", stream=True)


class Endless(Paced):
    """Says x for ever."""

    def _next(self, ids: list[int]) -> int:
        return ord("x")


@pytest.mark.parametrize(("calls", "status"), [(0, 503), (20, 200)])
def test_a_server_that_stops_says_so_by_a_status_or_an_event(calls: int, status: int) -> None:
    executable, lines = Endless(), list[str]()
    body = {"input": QUESTION, "stream": True}

    def call() -> None:
        with client.stream("POST", RESPONSES, json=body) as answer:
            lines.append(str(answer.status_code))
            lines.extend(answer.iter_lines())

    with served(LLM(fakes.fake_model(executable, template=CHAT))) as client:
        caller = threading.Thread(target=call)
        caller.start()
        executable.let(calls)
        until(lambda: client.server.replies.under_way == 1 and bool(lines) == bool(calls))
        client.stop()  # soon: the server's own thread ends what is under way
        until(lambda: client.server.replies.is_stopped)
        executable.let()
        caller.join(30)
    assert lines[0] == str(status)
    if calls:
        last = events_of("\n".join(lines[1:]) + "\n")[-1]
        assert last["type"] == "response.failed"
        assert "being stopped" in last["response"]["error"]["message"]
    else:
        assert "being stopped" in json.loads(lines[1])["error"]["message"]


def test_what_fails_in_the_middle_is_a_response_that_failed(broken: Served) -> None:
    *before, last = events_of(ask(broken, stream=True).text)
    assert before[0]["type"] == "response.created" and last["type"] == "response.failed"
    response, deltas = last["response"], [each.get("delta", "") for each in before]
    assert (response["status"], response["usage"]) == ("failed", None)
    assert response["id"] == before[0]["response"]["id"]
    assert response["error"]["code"] == "server_error"
    assert response["error"]["message"].startswith("the model failed: ")
    (item,) = response["output"]
    assert (item["status"], item["content"][0]["text"]) == ("incomplete", "".join(deltas))


def test_the_official_client_reports_what_fails_in_the_middle(broken: Served) -> None:
    openai = pytest.importorskip("openai")
    fields: Any = {"model": "fake", "input": QUESTION}
    url = str(broken.base_url.join("/v1"))
    with openai.OpenAI(base_url=url, api_key="none", max_retries=0) as api:
        *_, last = api.responses.create(stream=True, **fields)
        assert (last.type, last.response.status) == ("response.failed", "failed")
        assert "the model failed" in last.response.error.message
        with api.responses.stream(**fields) as stream:
            kinds = [event.type for event in stream]
            with pytest.raises(RuntimeError, match=r"response\.completed"):
                stream.get_final_response()
    assert kinds[-1] == "response.failed"
