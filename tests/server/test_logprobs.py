"""How likely tokens were, in both forms of OpenAI's API, whole and in pieces."""

from __future__ import annotations

import math
from typing import Any

import pytest

from edgerun.engine.chooser.logprobs import TokenLogprob
from edgerun.llm.llm import LLM
from edgerun.model.text.tokenizer import Tokenizer
from edgerun.server.logprobs import TextLogprobs
from tests.server.served import HELLO, Served, served
from tests.server.test_chat import events
from tests.support import fakes

FIELDS: dict[str, Any] = {"max_tokens": 9, "temperature": 1.5, "seed": 3}


def expected(**sampling: Any) -> Any:
    with LLM(fakes.fake_model()) as llm:
        return llm.chat(HELLO, **FIELDS, **sampling)


def test_a_message_has_those_of_its_tokens(client: Served) -> None:
    (choice,) = client.chat(**FIELDS, logprobs=True, top_logprobs=2).json()["choices"]
    content = choice["logprobs"]["content"]
    completion = expected(logprobs=2)
    assert [entry["logprob"] for entry in content] == pytest.approx(
        [entry.logprob for entry in completion.logprobs]
    )
    assert b"".join(bytes(entry["bytes"]) for entry in content).decode() == completion.text
    for entry, same in zip(content, completion.logprobs, strict=True):
        assert entry["token"] == bytes(entry["bytes"]).decode()
        tops = entry["top_logprobs"]
        assert [bytes(top["bytes"]) for top in tops] == [bytes([id_]) for id_, _ in same.top]
        assert tops[0]["logprob"] >= tops[1]["logprob"]


def test_a_stream_tells_of_each_token_once(client: Served) -> None:
    whole = client.chat(**FIELDS, logprobs=True, top_logprobs=1).json()["choices"][0]
    chunks = events(client.chat(**FIELDS, logprobs=True, top_logprobs=1, stream=True).text)
    choices = [chunk["choices"][0] for chunk in chunks]
    content = [
        entry for choice in choices if choice["logprobs"] for entry in choice["logprobs"]["content"]
    ]
    assert content == whole["logprobs"]["content"]


def test_without_asking_there_are_none(client: Served) -> None:
    assert client.chat(**FIELDS).json()["choices"][0]["logprobs"] is None
    assert client.chat(**FIELDS, logprobs=False).json()["choices"][0]["logprobs"] is None
    assert client.text("a", **FIELDS).json()["choices"][0]["logprobs"] is None
    (choice,) = client.chat(**FIELDS, logprobs=True).json()["choices"]
    assert choice["logprobs"]["content"][0]["top_logprobs"] == []


def test_a_reply_without_tokens_has_those_of_none(client: Served) -> None:
    at_once = [*range(fakes.VOCAB)]
    (message,) = client.chat(logprobs=True, stop_ids=at_once).json()["choices"]
    (text,) = client.text("a", logprobs=1, stop_ids=at_once).json()["choices"]
    assert (message["message"]["content"], text["text"]) == ("", "")
    assert message["logprobs"] == {"content": [], "refusal": None}
    names = ("tokens", "token_logprobs", "top_logprobs", "text_offset")
    assert text["logprobs"] == {name: [] for name in names}


@pytest.mark.parametrize("count", [0, 3])
def test_a_text_has_lists_of_them(client: Served, count: int) -> None:
    (choice,) = client.text("Once", **FIELDS, logprobs=count).json()["choices"]
    lists = choice["logprobs"]
    assert "".join(lists["tokens"]) == choice["text"]
    assert lists["text_offset"] == list(range(9))
    for token, logprob, top in zip(
        lists["tokens"], lists["token_logprobs"], lists["top_logprobs"], strict=True
    ):
        assert max(1, count) <= len(top) <= count + 1
        assert top[token] == logprob and math.isfinite(logprob) and logprob <= 0
    chunks = events(client.text("Once", **FIELDS, logprobs=count, stream=True).text)
    parts = [chunk["choices"][0]["logprobs"] for chunk in chunks if chunk["choices"][0]["logprobs"]]
    assert {name: sum((part[name] for part in parts), []) for name in lists} == lists


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"top_logprobs": 3}, "logprobs: true"),
        ({"top_logprobs": False}, "logprobs: true"),
        ({"top_logprobs": []}, "logprobs: true"),
        ({"top_logprobs": ""}, "logprobs: true"),
        ({"logprobs": True, "top_logprobs": 21}, "0 to 20"),
        ({"logprobs": True, "top_logprobs": -1}, "0 to 20"),
        ({"logprobs": 3}, "logprobs: expected `bool`"),
    ],
)
def test_what_cannot_be_told_is_refused(client: Served, fields: dict[str, Any], says: str) -> None:
    answer = client.chat(**fields)
    assert (answer.status_code, says in answer.json()["error"]["message"]) == (400, True)


def test_texts_have_their_own_refusals(client: Served) -> None:
    for fields in ({"logprobs": True}, {"logprobs": 21}, {"logprobs": 1, "echo": True}):
        answer = client.text("a", **fields)
        assert answer.status_code == 400 and "logprobs" in answer.json()["error"]["message"]


def test_tokens_without_text_take_no_room_of_it() -> None:
    """A reply that goes on behind its end has some: they have names, and are no text."""
    said = [*b"a", fakes.END, *b"b", fakes.END, *b"cd"]
    script = {position: id_ for position, id_ in enumerate(said, 2)}  # behind a prompt of two
    fields: dict[str, Any] = {"max_tokens": 6, "ignore_eos": True, "logprobs": 0, "temperature": 0}
    with served(LLM(fakes.fake_model(fakes.FakeExecutable(script)))) as client:
        (choice,) = client.text("x", **fields).json()["choices"]
        chunks = events(client.text("x", **fields, stream=True).text)
    assert choice["text"] == "abcd"
    assert choice["logprobs"]["tokens"] == ["a", "<|im_end|>", "b", "<|im_end|>", "c", "d"]
    assert choice["logprobs"]["text_offset"] == [0, 1, 1, 2, 2, 3]
    parts = [chunk["choices"][0]["logprobs"] for chunk in chunks]
    assert sum((part["text_offset"] for part in parts if part), []) == [0, 1, 1, 2, 2, 3]


@pytest.mark.parametrize("stream", [False, True])
def test_offsets_are_those_of_characters_whatever_their_tokens(stream: bool) -> None:
    text = "né 🐕 x"
    said = text.encode()
    fields: dict[str, Any] = {"max_tokens": len(said), "logprobs": 0, "temperature": 0}
    script = dict(enumerate(said, 2))  # behind a prompt of two
    with served(LLM(fakes.fake_model(fakes.FakeExecutable(script)))) as client:
        answer = client.text("x", stream=stream, **fields)
    chunks = events(answer.text) if stream else [answer.json()]
    choices = [chunk["choices"][0] for chunk in chunks]
    offsets = sum((each["logprobs"]["text_offset"] for each in choices if each["logprobs"]), [])
    assert "".join(choice["text"] for choice in choices) == text
    assert offsets == [0, 1, 1, 2, 3, 3, 3, 3, 4, 5]


@pytest.mark.parametrize(("continues", "second"), [(False, 1), (True, 2)])
def test_offsets_do_not_count_a_space_that_is_taken_off(continues: bool, second: int) -> None:
    tokenizer = Tokenizer.from_json(fakes.spm_tokenizer_json(), {})
    lists = TextLogprobs(tokenizer, continues=continues)
    entries = [TokenLogprob(id_, -1.0, ()) for id_ in tokenizer.encode("ab", bos=False)]
    assert [tokenizer.token_bytes(entry.id) for entry in entries] == [b" a", b"b"]
    assert lists.lists(entries[:1])["text_offset"] == [0]
    assert lists.lists([])["text_offset"] == []
    assert lists.lists(entries[1:])["text_offset"] == [second]


@pytest.mark.parametrize(
    ("prompt", "fields", "second"),
    [
        ([1], {}, 1),
        ([1, 100], {}, 2),
        ("x", {}, 2),
        ([1], {"regex": " ab"}, 2),  # with a form all of a reply is told
        ([1, 100], {"regex": " ab"}, 2),
    ],
)
def test_a_space_is_taken_off_behind_what_is_no_text(
    prompt: Any, fields: dict[str, Any], second: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    if fields:
        pytest.importorskip("llguidance")
    special = {"bos_token": "<s>", "eos_token": "</s>", "add_bos_token": True}
    tokenizer = Tokenizer.from_json(fakes.spm_tokenizer_json(), special)
    monkeypatch.setattr(fakes, "VOCAB", tokenizer.vocab_size)
    length = len(tokenizer.encode(prompt)) if isinstance(prompt, str) else len(prompt)
    script = dict(enumerate(tokenizer.encode("ab", bos=False), length))
    parts = {"tokenizer": tokenizer, "vocab_size": tokenizer.vocab_size, "template": None}
    model = fakes.fake_model(fakes.FakeExecutable(script), eos_ids=(2,), **parts)
    fields = {"max_tokens": 2, "logprobs": 0, "temperature": 0, "n": 2, **fields}
    with served(LLM(model)) as client:
        choices = client.text(["y", prompt], **fields).json()["choices"]
    for choice in choices[2:]:
        assert choice["logprobs"]["text_offset"] == [0, second]
        assert choice["text"] == " ab"[2 - second :]
