"""``/v1/chat/completions`` as its callers see it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from edgerun.errors import BackendError, InputError
from edgerun.llm.llm import LLM
from tests.server.served import CHAT, HELLO, Served, served
from tests.support import fakes


class Failing(fakes.FakeExecutable):
    """Fails in calls of prompts with a q."""

    def __call__(self, batch: Any, *others: Any) -> Any:
        if ord("q") in batch.ids:
            raise BackendError("the device is gone")
        return super().__call__(batch, *others)


def events(text: str) -> list[dict[str, Any]]:
    """What a stream of events says, which has to end as such streams do."""
    blocks = text.split("\n\n")
    assert blocks[-1] == "" and all(block.startswith("data: ") for block in blocks[:-1])
    assert blocks[-2] == "data: [DONE]"
    return [json.loads(block.removeprefix("data: ")) for block in blocks[:-2]]


def alone(messages: list[dict[str, str]] = HELLO, **sampling: Any) -> Any:
    with LLM(fakes.fake_model()) as llm:
        return llm.chat(messages, **sampling)


def test_a_reply_is_the_models_own(client: Served) -> None:
    before = client.get("/v1/models").json()["data"][0]
    answer = client.chat(max_tokens=12, temperature=0.9, seed=3).json()
    expected = alone(max_tokens=12, temperature=0.9, seed=3)
    (choice,) = answer["choices"]
    message = {"role": "assistant", "content": expected.text, "refusal": None}
    assert choice["message"] == message  # all three are required in OpenAI's API
    assert (choice["index"], choice["finish_reason"]) == (0, "length")
    assert answer["object"] == "chat.completion" and answer["id"].startswith("chatcmpl-")
    assert answer["model"] == before["id"] == "fake" and answer["created"] >= before["created"]
    usage = answer["usage"]
    assert usage["prompt_tokens"] == expected.prompt_tokens
    assert usage["completion_tokens"] == 12
    assert usage["total_tokens"] == expected.prompt_tokens + 12


def test_a_stream_says_the_same_in_pieces(client: Served) -> None:
    fields = {"max_tokens": 12, "seed": 3, "temperature": 0.9}
    whole = client.chat(**fields).json()
    chunks = events(client.chat(**fields, stream=True).text)
    assert {chunk["object"] for chunk in chunks} == {"chat.completion.chunk"}
    assert len({chunk["id"] for chunk in chunks}) == 1
    choices = [choice for chunk in chunks for choice in chunk["choices"]]
    assert choices[0]["delta"] == {"role": "assistant", "content": ""}
    text = "".join(choice["delta"].get("content", "") for choice in choices)
    assert text == whole["choices"][0]["message"]["content"]
    assert [choice["finish_reason"] for choice in choices[:-1]] == [None] * (len(choices) - 1)
    assert (choices[-1]["delta"], choices[-1]["finish_reason"]) == ({}, "length")
    assert not any("usage" in chunk for chunk in chunks)


def test_a_stream_ends_with_usage_where_that_is_asked_for(client: Served) -> None:
    options = {"include_usage": True}
    *chunks, last = events(client.chat(max_tokens=3, stream=True, stream_options=options).text)
    assert all(chunk["usage"] is None for chunk in chunks)
    assert last["choices"] == [] and last["usage"]["completion_tokens"] == 3


def test_the_type_of_a_stream_is_that_of_events(client: Served) -> None:
    answer = client.chat(max_tokens=1, stream=True)
    assert answer.headers["content-type"].startswith("text/event-stream")
    assert answer.headers["cache-control"] == "no-cache"


def test_a_prompt_is_encoded_once_for_all_its_replies(
    client: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    encoded: list[int] = []
    tokenizer = client.server.llm.tokenizer

    def counted(encode: Any) -> Any:
        return lambda items: encoded.append(len(items)) or encode(items)

    for name in ("encode_many", "encode_templates"):
        monkeypatch.setattr(tokenizer, name, counted(getattr(tokenizer, name)))
    assert len(client.chat(n=5, max_tokens=1).json()["choices"]) == 5
    assert len(client.text(["a", "b"], n=5, max_tokens=1).json()["choices"]) == 10
    assert encoded == [1, 2]


@pytest.mark.parametrize("stream", [False, True])
def test_several_replies_differ_by_seed(client: Served, stream: bool) -> None:
    fields = {"max_tokens": 8, "temperature": 2.0, "n": 3, "seed": 5}
    texts = ["", "", ""]
    if stream:
        for chunk in events(client.chat(**fields, stream=True).text):
            for choice in chunk["choices"]:
                texts[choice["index"]] += choice["delta"].get("content", "")
    else:
        for choice in client.chat(**fields).json()["choices"]:
            texts[choice["index"]] = choice["message"]["content"]
    assert texts == [alone(max_tokens=8, temperature=2.0, seed=seed).text for seed in (5, 6, 7)]


def test_usage_counts_a_prompt_once(client: Served) -> None:
    usage = client.chat(max_tokens=4, n=3).json()["usage"]
    assert usage["completion_tokens"] == 12
    assert usage["prompt_tokens"] == client.chat(max_tokens=4).json()["usage"]["prompt_tokens"]


def test_what_a_conversation_began_with_is_reused(client: Served) -> None:
    words = [{"role": "user", "content": "This is the beginning of a long conversation"}]
    client.chat(messages=words, max_tokens=1)
    usage = client.chat(messages=words, max_tokens=1).json()["usage"]
    assert usage["prompt_tokens_details"]["cached_tokens"] == usage["prompt_tokens"] - 1


@pytest.mark.parametrize(
    ("fields", "same"),
    [
        ({"max_completion_tokens": 5}, {"max_tokens": 5}),
        ({"max_tokens": None, "max_completion_tokens": 5}, {"max_tokens": 5}),
        ({"max_tokens": 5, "user": "me", "metadata": {"a": "b"}, "n": 1}, {"max_tokens": 5}),
        (
            {"max_tokens": 5, "store": False, "service_tier": "auto", "modalities": ["text"]},
            {"max_tokens": 5},
        ),
        ({"max_tokens": 5, "service_tier": "default"}, {"max_tokens": 5}),
        (
            {
                "max_tokens": 5,
                "verbosity": "medium",
                "prompt_cache_retention": "24h",
                "prediction": {"type": "content", "content": "Hello"},
            },
            {"max_tokens": 5},
        ),
        (
            {"max_tokens": 9, "temperature": 3, "top_p": 0, "top_k": 5},
            {"max_tokens": 9, "temperature": 0},
        ),
        (
            {"max_tokens": 9, "temperature": 3, "seed": -5},
            {"max_tokens": 9, "temperature": 3, "seed": 2**64 - 5},
        ),
        ({"max_tokens": 9, "stop": "a"}, {"max_tokens": 9, "stop": "a"}),
        ({"max_tokens": 9, "stop": ["a", "b"]}, {"max_tokens": 9, "stop": ["a", "b"]}),
        ({"max_tokens": 9, "stop": None, "seed": None}, {"max_tokens": 9}),
        ({"max_tokens": 9, "logit_bias": {"97": 100}}, {"max_tokens": 9, "logit_bias": {97: 100}}),
        ({"max_tokens": 9, "response_format": {"type": "text"}}, {"max_tokens": 9}),
        (
            {"max_tokens": 9, "temperature": 3, "top_k": 2, "min_p": 0.1, "seed": 9},
            {"max_tokens": 9, "temperature": 3, "top_k": 2, "min_p": 0.1, "seed": 9},
        ),
    ],
)
def test_fields_mean_what_they_mean_in_python(
    client: Served, fields: dict[str, Any], same: dict[str, Any]
) -> None:
    answer = client.chat(**fields).json()["choices"][0]
    expected = alone(**same)
    assert answer["message"]["content"] == expected.text
    assert answer["finish_reason"] == expected.finish_reason


def test_content_may_be_in_parts(client: Served) -> None:
    parts = [{"role": "user", "content": [{"type": "text", "text": "Hello"}]}]
    assert (
        client.chat(messages=parts, max_tokens=5).json()["choices"]
        == (client.chat(max_tokens=5).json()["choices"])
    )


def test_other_fields_of_messages_are_for_the_chat_template(client: Served) -> None:
    part = {"type": "text", "text": "Hello", "cache_control": {"type": "ephemeral"}}
    sent = [{**HELLO[0], "content": [part], "name": "Ann", "audio": None, "phase": "final"}]
    answer, usual = (client.chat(messages=each, max_tokens=5).json() for each in (sent, HELLO))
    assert answer["choices"] == usual["choices"]  # of a template that reads none
    template = "{% for each in messages %}{{ each.name }}: {{ each.content }}{% endfor %}"
    with served(LLM(fakes.fake_model(template=template))) as reading:
        usage = reading.chat(messages=sent, max_tokens=1).json()["usage"]
    assert usage["prompt_tokens"] == len("Ann: Hello")


@pytest.mark.parametrize(
    "refusing",
    [
        {"content": [{"type": "refusal", "refusal": "No."}]},
        {"content": None, "refusal": "No."},
        {"refusal": "No."},
        {"content": "No.", "refusal": None},
    ],
)
def test_a_refusal_is_what_the_assistant_said(client: Served, refusing: dict[str, Any]) -> None:
    def answer(said: dict[str, Any]) -> Any:
        messages = [*HELLO, {"role": "assistant", **said}, *HELLO]
        body = client.chat(messages=messages, max_tokens=5).json()
        return body["choices"], body["usage"]["prompt_tokens"]

    assert answer(refusing) == answer({"content": "No."})


@pytest.mark.parametrize(
    "message",
    [
        {"role": "user", "content": [{"type": "refusal", "refusal": "No."}]},
        {"role": "user", "refusal": "No."},
        {"role": "assistant", "content": [{"type": "refusal", "refusal": 5}]},
        {"role": "assistant", "content": [{"type": "refusal"}, 5]},
    ],
)
def test_what_is_no_refusal_is_refused(client: Served, message: dict[str, Any]) -> None:
    answer = client.chat(messages=[message], max_tokens=5)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "messages[0]")


def test_an_end_for_want_of_room_says_so() -> None:
    with served(LLM(fakes.fake_model(context=40))) as client:
        (choice,) = client.chat().json()["choices"]
        assert (choice["finish_reason"], choice["finish_detail"]) == ("length", "context")


@pytest.mark.parametrize(
    ("fields", "status", "says"),
    [
        ({"messages": []}, 400, "at least one message"),
        ({"messages": "Hello"}, 400, "messages: expected `array`"),
        ({"messages": [{"role": "king", "content": "x"}]}, 400, "'king'"),
        ({"messages": [{"role": "user"}]}, 400, "no content"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, 400, "text only"),
        ({"messages": [{"role": "user", "content": "x" * 9000}]}, 400, "context is 512"),
        ({"store": True}, 400, "store: nothing is stored here; expected false, or leave it out"),
        ({"store": "no"}, 400, "store: expected `bool`"),
        ({"service_tier": "flex"}, 400, "service_tier: there is no tier 'flex' here; expected"),
        ({"verbosity": "low"}, 400, "verbosity: models are not told to be 'low' here; expected"),
        ({"modalities": ["text", "audio"]}, 400, "modalities: replies are text"),
        ({"modalities": []}, 400, "modalities: replies are text, and not []; expected ['text']"),
        ({"max_token": 5}, 400, "did you mean 'max_tokens'"),
        ({"max_tokens": 0}, 400, "max_tokens is 0"),
        ({"max_tokens": 10**30}, 400, "max_tokens"),
        ({"max_tokens": 1, "max_completion_tokens": 2}, 400, "leave one out"),
        ({"temperature": "hot"}, 400, "temperature is 'hot'"),
        ({"temperature": -1}, 400, "0 to 100"),
        ({"n": 0}, 400, "n: expected `int` >= 1"),
        ({"n": 129}, 400, "n: expected `int` <= 128"),
        ({"n": 100}, 400, "at most 68 fit"),
        ({"stream": 1}, 400, "stream: expected `bool`"),
        ({"stream_options": {"usage": True}}, 400, "stream_options"),
        (
            {"reasoning_effort": "low", "chat_template_kwargs": {"reasoning_effort": "high"}},
            400,
            "'high' in chat_template_kwargs",
        ),
        (
            {"response_format": {"type": "text", "json_schema": {"schema": {}}}},
            400,
            "its type is 'text'",
        ),
        ({"stop": [""]}, 400, "empty text"),
        ({"stop": ["x"] * 65}, 400, "at most 64"),
        ({"top_p": False}, 400, "top_p is False"),
        ({"top_p": -1}, 400, "top_p is -1"),
        ({"seed": -(2**63) - 1}, 400, "seed is -9223372036854775809"),
        ({"logit_bias": {"x": 1}}, 400, "'x'; expected the id of a token"),
        ({"logit_bias": {"7": 1, "07": 2}}, 400, "'07'"),
        ({"logit_bias": {"1_0": 1}}, 400, "'1_0'"),
        ({"logit_bias": {"None": 1}}, 400, "'None'"),
        ({"logit_bias": {"9" * 5000: 1}}, 400, "expected the id of a token"),
        ({"logit_bias": {"97": 10**400}}, 400, "-100 to 100"),
        ({"temperature": 10**400}, 400, "0 to 100"),
        ({"temperature": -(10**400)}, 400, "0 to 100"),
        ({"logit_bias": {"97": 1000}}, 400, "logit_bias"),
        ({"response_format": {"type": "xml"}}, 400, "xml"),
        ({"response_format": {"type": "json_schema"}}, 400, "no json_schema.schema"),
        ({"response_format": {"type": "json_object"}, "json_schema": {}}, 400, "leave one out"),
        ({"model": "other"}, 404, "this server has 'fake'"),
        ({"processors": []}, 400, "there is no field 'processors'"),
        ({"audio": {}}, 400, "there is no field 'audio'"),
    ],
)
def test_what_cannot_be_done_is_refused_in_a_sentence(
    client: Served, fields: dict[str, Any], status: int, says: str
) -> None:
    for stream in ({}, {"stream": True}):
        answer = client.chat(**{**stream, **fields})
        error = answer.json()["error"]
        assert (answer.status_code, says in error["message"]) == (status, True), error
        assert set(error) == {"message", "type", "param", "code"}
    assert client.server.replies.under_way == 0


@pytest.mark.parametrize(
    ("body", "kind", "status"),
    [
        (b"{}", "text/plain", 415),
        (b"{}", "", 415),
        (b"", "application/json", 400),
        (b"{", "application/json", 400),
        (b"[1]", "application/json", 400),
        (b"null", "application/json", 400),
        (b'{"messages": NaN}', "application/json", 400),
        (b'{"a": "\xff"}', "application/json", 400),
        (b'{"a": "\\ud800"}', "application/json", 400),
        (b"[" * 100_000, "application/json", 400),
        (b'{"a":' * 100_000, "application/json", 400),
        (b"x" * (2 << 20), "application/json", 413),
    ],
)
def test_bodies_that_are_none(client: Served, body: bytes, kind: str, status: int) -> None:
    answer = client.post(CHAT, content=body, headers={"Content-Type": kind})
    assert answer.status_code == status
    assert answer.json()["error"]["message"]


def test_a_body_in_chunks_has_the_same_limit(client: Served) -> None:
    chunks = (b" " * 65536 for _ in range(40))
    headers = {"Content-Type": "application/json"}
    assert client.post(CHAT, content=chunks, headers=headers).status_code == 413


def test_a_charset_may_be_named(client: Served) -> None:
    body = json.dumps({"messages": HELLO, "max_tokens": 1}).encode()
    headers = {"Content-Type": "Application/JSON; charset=utf-8"}
    assert client.post(CHAT, content=body, headers=headers).status_code == 200


def test_a_model_that_fails_is_an_error_of_the_server() -> None:
    with served(LLM(fakes.fake_model(Failing()))) as client:
        bad = [{"role": "user", "content": "q"}]
        for stream in (False, True):
            answer = client.chat(messages=bad, stream=stream)
            assert answer.status_code == 500
            assert "the device is gone" in answer.json()["error"]["message"]
        assert client.chat(max_tokens=2).status_code == 200
        assert client.server.replies.under_way == 0


def test_a_server_without_a_name_has_that_of_the_folder() -> None:
    with served(name=None) as client:
        assert client.get("/v1/models/fake").json()["context_length"] == 512
        assert client.get("/v1/models/other").status_code == 404


@pytest.mark.parametrize("name", ["a b", "", "x\n", "é"])
def test_names_that_no_header_can_have_are_refused(name: str) -> None:
    with pytest.raises(InputError, match="name"), served(name=name):
        pass
