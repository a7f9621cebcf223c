"""What a model thinks is a field of its own, whole and in pieces."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.llm.chats.test_thinking import CHAT, REPLY, that_says
from tests.model.chat.tools.replies import MESSAGES
from tests.server.served import Served, served
from tests.server.test_chat import events


@pytest.fixture(scope="module")
def thinking() -> Iterator[Served]:
    with pytest.MonkeyPatch.context() as patch, served(that_says(REPLY, patch, CHAT)) as client:
        yield client


def test_thoughts_are_no_content(thinking: Served) -> None:
    answer = thinking.chat(messages=MESSAGES).json()
    message = {"role": "assistant", "content": "Hi!\n", "reasoning_content": "Is it <b>?"}
    assert answer["choices"][0]["message"] == {**message, "refusal": None}
    assert answer["usage"]["completion_tokens_details"] == {"reasoning_tokens": 14}
    said = answer["choices"][0]["message"]
    again = thinking.chat(messages=[*MESSAGES, said, {"role": "user", "content": "And?"}])
    assert again.status_code == 200


def test_thoughts_come_before_the_content_of_a_stream(thinking: Served) -> None:
    chunks = events(thinking.chat(messages=MESSAGES, stream=True).text)
    deltas: list[Any] = [choice["delta"] for chunk in chunks for choice in chunk["choices"]]
    thoughts = [delta.get("reasoning_content", "") for delta in deltas]
    contents = [delta.get("content", "") for delta in deltas]
    assert ("".join(thoughts), "".join(contents)) == ("Is it <b>?", "Hi!\n")
    last_thought = max(place for place, text in enumerate(thoughts) if text)
    assert not any(contents[:last_thought])


def test_the_official_client_reads_them(thinking: Served) -> None:
    openai = pytest.importorskip("openai")
    url = str(thinking.base_url.join("/v1"))
    with openai.OpenAI(base_url=url, api_key="none", max_retries=0) as api:
        answer = api.chat.completions.create(model="fake", messages=MESSAGES)
    message = answer.choices[0].message
    assert (message.content, message.reasoning_content) == ("Hi!\n", "Is it <b>?")
    assert answer.usage.completion_tokens_details.reasoning_tokens > 0
