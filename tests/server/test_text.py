"""``/v1/completions`` as its callers see it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from edgerun.engine.constraints.trial import LIMITS
from edgerun.llm.llm import LLM
from tests.llm.test_infilling import AFTER, BEFORE, GAP, filler
from tests.server.served import Served, served
from tests.server.test_chat import events
from tests.support import fakes


def alone(prompt: Any, **sampling: Any) -> str:
    with LLM(fakes.fake_model()) as llm:
        return llm.generate(prompt, **sampling).text


def texts(answer: Any) -> list[str]:
    return [choice["text"] for choice in answer.json()["choices"]]


@pytest.mark.parametrize("prompt", ["Once", [79, 110, 99, 101]])
def test_a_prompt_is_continued(client: Served, prompt: Any) -> None:
    answer = client.text(prompt, max_tokens=9)
    assert texts(answer) == [alone(prompt, max_tokens=9)]
    assert answer.json()["object"] == "text_completion"
    assert answer.json()["choices"][0]["finish_reason"] == "length"


@pytest.mark.parametrize("stream", [False, True])
def test_several_prompts_have_several_replies_each(client: Served, stream: bool) -> None:
    fields = {"max_tokens": 6, "n": 2, "seed": 4, "temperature": 1.5, "echo": True}
    expected = [
        prompt + alone(prompt, max_tokens=6, temperature=1.5, seed=seed)
        for prompt in ("Once", "A cat")
        for seed in (4, 5)
    ]
    answer = client.text(["Once", "A cat"], **fields, stream=stream)
    if not stream:
        assert texts(answer) == expected
        usage = answer.json()["usage"]
        assert (usage["prompt_tokens"], usage["completion_tokens"]) == (5 + 6, 24)
        return
    joined = [""] * 4
    for chunk in events(answer.text):
        for choice in chunk["choices"]:
            joined[choice["index"]] += choice["text"]
    assert joined == expected


def test_ids_are_echoed_as_text(client: Served) -> None:
    answer = client.text([[79, 110], [99, 101]], max_tokens=1, echo=True)
    assert [text[:2] for text in texts(answer)] == ["On", "ce"]


def test_ids_that_do_not_fit_are_refused_before_they_are_spelled(
    client: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A megabyte of ids takes long to spell: for many replies the server answered nobody else."""

    def decode(ids: list[int]) -> str:
        raise AssertionError("spelled")

    monkeypatch.setattr(client.server.llm.tokenizer, "decode", decode)
    answer = client.text([5] * 600, echo=True, n=60)
    error = answer.json()["error"]
    assert (answer.status_code, error["code"]) == (400, "context_length_exceeded")
    assert error["param"] == "prompt"


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"prompt": ""}, "empty"),
        ({"prompt": []}, "expected a text"),
        ({"prompt": [""]}, "empty"),
        ({"prompt": ["a", 1]}, "expected a text"),
        ({"prompt": [[]]}, "empty"),
        ({"prompt": [1.5]}, "prompt"),
        ({"prompt": [True]}, "prompt"),
        ({"prompt": {"a": 1}}, "prompt: expected"),
        ({"prompt": [-1]}, "vocabulary"),
        ({"prompt": [10**9]}, "vocabulary"),
        ({"prompt": "x" * 600}, "context"),
        ({"prompt": ["a"] * 65, "n": 2}, "at most 128"),
        ({"prompt": ["a"] * 69}, "at most 68"),
        ({"prompt": "a", "best_of": 3}, "best_of"),
        ({"prompt": "a", "suffix": "b"}, "leave the suffix out"),
        ({"prompt": "a", "suffix": "b", "echo": True}, "leave echo or suffix out"),
        ({"prompt": "a", "suffix": 5}, "suffix: expected `str | null`"),
        ({"prompt": "a", "echo": "yes"}, "echo: expected `bool`"),
        ({}, "prompt"),
    ],
)
def test_what_cannot_be_done_is_refused(client: Served, fields: dict[str, Any], says: str) -> None:
    answer = client.post("/v1/completions", json=fields)
    assert answer.status_code == 400
    assert says in answer.json()["error"]["message"]
    assert client.server.replies.under_way == 0


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({}, "prompt"),
        ({"prompt": ""}, "prompt"),
        ({"prompt": "x" * 9000}, "prompt"),
        ({"prompt": [5] * 600}, "prompt"),
        ({"prompt": "a", "logprobs": 1, "echo": True}, "logprobs"),
        ({"prompt": "a", "suffix": "b", "echo": True}, "suffix"),
    ],
)
def test_errors_name_the_field(client: Served, fields: dict[str, Any], param: str) -> None:
    assert client.post("/v1/completions", json=fields).json()["error"]["param"] == param


def test_a_gap_is_filled(monkeypatch: pytest.MonkeyPatch) -> None:
    with served(filler(monkeypatch)) as client:
        answer = client.text(BEFORE, suffix=AFTER, temperature=0, n=2, logprobs=1)
        choices = answer.json()["choices"]
    assert [choice["text"] for choice in choices] == [GAP, GAP]
    assert choices[0]["finish_reason"] == "stop"
    assert "".join(choices[0]["logprobs"]["tokens"]) == GAP


def test_an_expression_that_comes_to_a_limit_is_the_callers_to_mend(
    client: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Clients ask once more for what fails with a 500."""
    monkeypatch.setitem(LIMITS, "max_lexer_states", 20)
    answer = client.text("Once", regex="a{90}", max_tokens=80)
    error = answer.json()["error"]
    assert (answer.status_code, error["code"]) == (400, "invalid_value")
    assert error["message"].startswith("regex allows no token to go on with: lexer error: too many")
    assert error["param"] == "regex"
    streamed = client.text("Once", regex="a{90}", max_tokens=80, stream=True).text
    assert json.loads(streamed.split("data: ")[-1])["error"] == error
