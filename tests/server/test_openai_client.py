"""The client that most programs have: https://github.com/openai/openai-python."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.server.served import Served

openai = pytest.importorskip("openai")

MESSAGES: Any = [{"role": "user", "content": "Hello"}]


@pytest.fixture(scope="module")
def api(client: Served) -> Iterator[Any]:
    url = str(client.base_url.join("/v1"))
    with openai.OpenAI(base_url=url, api_key="none", max_retries=0, timeout=30) as api:
        yield api


def test_a_chat_and_its_stream(api: Any) -> None:
    fields: Any = {"model": "fake", "messages": MESSAGES, "max_tokens": 8, "seed": 2}
    whole = api.chat.completions.create(**fields)
    assert whole.choices[0].finish_reason == "length" and whole._request_id.startswith("req_")
    stream = api.chat.completions.create(
        **fields, stream=True, stream_options={"include_usage": True}
    )
    chunks = list(stream)
    text = "".join(choice.delta.content or "" for chunk in chunks for choice in chunk.choices)
    assert text == whole.choices[0].message.content
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens == 8


def test_texts_and_models(api: Any) -> None:
    answer = api.completions.create(model="fake", prompt=["a", "b"], max_tokens=3)
    assert [choice.index for choice in answer.choices] == [0, 1]
    assert [model.id for model in api.models.list()] == ["fake"]
    assert api.models.retrieve("fake").owned_by == "edgerun"


def test_options_of_our_own_go_in_extra_body(api: Any) -> None:
    fields: Any = {"model": "fake", "messages": MESSAGES, "max_tokens": 8}
    answer = api.chat.completions.create(**fields, extra_body={"top_k": 1, "min_p": 0.1})
    assert len(answer.choices[0].message.content) == 8


def test_errors_have_their_types(api: Any) -> None:
    with pytest.raises(openai.NotFoundError, match="this server has"):
        api.chat.completions.create(model="gpt", messages=MESSAGES)
    with pytest.raises(openai.BadRequestError) as raised:
        api.chat.completions.create(
            model="fake", messages=[{"role": "user", "content": "x" * 9000}]
        )
    assert raised.value.code == "context_length_exceeded"
    with pytest.raises(openai.BadRequestError, match="temperature"):
        api.chat.completions.create(model="fake", messages=MESSAGES, temperature=-3)
