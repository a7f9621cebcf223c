"""Chats with models that think: thoughts are no part of what they answer, wherever that goes."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from pathlib import Path as Folder
from typing import Any

import pytest

from edgerun.errors import SamplingError
from edgerun.llm.llm import LLM
from edgerun.llm.pump import Pump
from edgerun.llm.replies.completion import Part
from edgerun.model.text.tokenizer import Tokenizer
from tests.model.chat.test_disguise import tokenizer_for
from tests.model.chat.tools.replies import FORMS, MESSAGES, template_of, tool
from tests.server.served import until
from tests.support import fakes

# As Qwen3 has it: thoughts of the last reply stay, begun ones are asked for by a name.
CHAT = """\
{% for message in messages %}<|im_start|>{{ message.role }}
{% if loop.last and message.reasoning_content %}<think>
{{ message.reasoning_content }}
</think>

{% endif %}{{ message.content }}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% if thinking %}<think>
{% endif %}{% endif %}"""
HARMONY = """\
{% for message in messages -%}
{% if message.role == 'assistant' -%}
{% if message.thinking %}<|start|>assistant<|channel|>analysis<|message|>{{ message.thinking }}<|end|>{% endif -%}
<|start|>assistant<|channel|>final<|message|>{{ message.content }}<|end|>
{%- else %}<|start|>{{ message.role }}<|message|>{{ message.content }}<|end|>
{%- endif %}{% endfor %}{% if add_generation_prompt %}<|start|>assistant{% endif %}
{#- <|return|><|call|> -#}"""  # noqa: E501, as it is rendered
REPLY = "<think>\nIs it <b>?\n</think>\n\nHi!\n"
HARMONIOUS = (
    "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final<|message|>Hi!"
)
BEGUN = {"thinking": True}


def ids_of(text: str, tokenizer: Tokenizer) -> list[int]:
    """A reply as a model says it: control tokens by their ids, bytes for all else."""
    ids: list[int] = []
    for run, control in tokenizer.controls.split(text):
        ids += [*run.encode(), *(() if control is None else (control,))]
    return ids


def that_says(
    reply: str,
    monkeypatch: pytest.MonkeyPatch,
    template: str = CHAT,
    values: Mapping[str, Any] | None = None,
    tools: Sequence[Any] | None = None,
) -> LLM:
    """A model that has the tokens which a template names, and says this to ``MESSAGES``."""
    tokenizer = tokenizer_for(template)
    monkeypatch.setattr(fakes, "VOCAB", tokenizer.vocab_size)
    parts: dict[str, Any] = {"template": template, "tokenizer": tokenizer, "context": 2048}
    parts["eos_ids"] = tokenizer.eos_ids
    with LLM(fakes.fake_model(**parts)) as llm:
        (chat,) = llm._format.encode_many([MESSAGES], tools=tools, variables=values)
    ids = [*ids_of(reply, tokenizer), tokenizer.eos_ids[0]]
    script = {len(chat.ids) + place: id_ for place, id_ in enumerate(ids)}
    return LLM(fakes.fake_model(fakes.FakeExecutable(script), **parts))


@pytest.mark.parametrize(
    ("template", "reply", "thinking", "tokens"),
    [(CHAT, REPLY, "Is it <b>?", 14), (HARMONY, HARMONIOUS, "Hm.", 5)],
    ids=["tags", "channels"],
)
def test_thoughts_are_apart(
    template: str, reply: str, thinking: str, tokens: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    with that_says(reply, monkeypatch, template) as llm:
        completion = llm.chat(MESSAGES)
        said = list(llm.stream_chat(MESSAGES))
        stream = llm.stream_chat(MESSAGES)
        parts = list(stream.parts())
        later, pieces = asyncio.run(awaited(llm))
        ((_, together), *_) = [*llm.together([llm.stream_chat(MESSAGES)])]
        tokenizer = llm.tokenizer
    assert (completion.thinking, completion.text.strip()) == (thinking, "Hi!")
    assert completion.ids == ids_of(reply, tokenizer)
    assert completion.thinking_tokens == tokens  # with what begins and ends a thought
    assert completion.message == {
        "role": "assistant",
        "content": completion.text,
        "reasoning_content": thinking,
    }
    assert "".join(said) == completion.text and together == said[0]
    assert all(bool(part.text) != bool(part.thinking) for part in parts)
    assert stream.completion.text == "".join(part.text for part in parts) == completion.text
    assert "".join(part.thinking for part in parts) == thinking
    assert parts[0] == Part(thinking=thinking[0])
    assert (later, pieces) == (parts, said)


async def awaited(llm: LLM) -> tuple[list[Part], list[str]]:
    """The parts and the pieces of a reply that a coroutine reads."""
    parts = [part async for part in llm.stream_chat(MESSAGES).parts()]
    return parts, [piece async for piece in llm.stream_chat(MESSAGES)]


def test_a_reply_may_go_on_with_a_thought_that_the_prompt_begins(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with that_says("\nSo.\n</think>\n\nHi!", monkeypatch, values=BEGUN) as llm:
        completion = llm.chat(MESSAGES, template_values=BEGUN)
        cut = llm.chat(MESSAGES, template_values=BEGUN, max_tokens=3)
        plain = llm.generate("x", max_tokens=20)
    assert (completion.thinking, completion.text) == ("So.", "Hi!")
    assert (cut.thinking, cut.text, cut.finish_reason) == ("So", "", "length")
    assert (cut.thinking_tokens, plain.thinking) == (3, "")


def test_stop_texts_are_looked_for_in_the_answer_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    with that_says(REPLY, monkeypatch) as llm:
        completion = llm.chat(MESSAGES, stop=["b", "!"])
    assert (completion.thinking, completion.text) == ("Is it <b>?", "Hi")
    assert (completion.finish_reason, completion.stop_text) == ("stop", "!")


def test_a_pump_hands_thoughts_over(monkeypatch: pytest.MonkeyPatch) -> None:
    heard: list[Any] = []
    with that_says(REPLY, monkeypatch) as llm:
        pump = Pump(llm, heard.extend)
        pump.add([llm.stream_chat(MESSAGES)])
        until(lambda: bool(heard) and heard[-1].is_last)
        pump.close()
    assert "".join(piece.part.thinking for piece in heard) == "Is it <b>?"
    assert "".join(piece.part.text for piece in heard) == "Hi!\n"
    assert heard[0].part.thinking and not heard[0].part.text


def test_a_session_remembers_thoughts_beside_answers(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Folder
) -> None:
    with that_says(REPLY, monkeypatch) as llm:
        session = llm.session()
        session.send(MESSAGES[0]["content"]).result()
        said = [
            *MESSAGES,
            {"role": "assistant", "content": "Hi!\n", "reasoning_content": "Is it <b>?"},
        ]
        assert session.messages == said
        session.save(tmp_path / "chat")
        other = llm.session()
        other.load(tmp_path / "chat")
        assert other.messages == said
        asked = [*said, {"role": "user", "content": "And?"}]
        replies = [each.send("And?", max_tokens=5).result() for each in (session, other)]
        alone = llm.chat(asked, max_tokens=5)
        text = llm._format.encode(asked).text
    assert [reply.ids for reply in replies] == [alone.ids] * 2
    assert [reply.prompt_tokens for reply in replies] == [alone.prompt_tokens] * 2
    assert "Is it" not in text and "Hi!" in text


def test_thoughts_of_a_conversation_go_where_its_template_reads_them() -> None:
    for key in ("reasoning_content", "reasoning", "thinking"):
        reply = {"role": "assistant", "content": "Hi!", key: "Hm <|end|>."}
        for template, mark in ((CHAT, "<think>"), (HARMONY, "analysis<|message|>")):
            with LLM(fakes.fake_model(template=template, context=4096)) as llm:
                chat = llm._format._rendered(
                    [llm._format._conversation([*MESSAGES, reply], None, None, {})], None
                )
            text = chat[0].disguise.reveal(chat[0].text)
            assert (f"{mark}Hm <|end|>." in text.replace("\n", "")) == ("Hm" in text)
            assert "Hm <|end|>." in text, (key, template)


SCHEMA = {"type": "object", "properties": {"a": {"enum": [7]}}, "required": ["a"]}
SCHEMA |= {"additionalProperties": False}


@pytest.mark.parametrize(
    ("template", "values", "reply"),
    [
        (CHAT, {}, "<think>\nWhat?\n</think>\n\nOh, 7"),
        (CHAT, {}, "Well, 7"),
        (CHAT, BEGUN, "What?\n</think>Seven"),
        (HARMONY, {}, HARMONIOUS),
    ],
    ids=["thinks", "thinks not", "goes on", "channels"],
)
def test_a_form_of_replies_is_one_of_answers(
    template: str, values: Any, reply: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the model would like to say, its thoughts are free, and its answer is not."""
    pytest.importorskip("llguidance")
    with that_says(reply, monkeypatch, template, values) as llm:
        free = llm.chat(MESSAGES, template_values=values)
        shaped = llm.chat(MESSAGES, template_values=values, json_schema=SCHEMA, seed=1)
        session = llm.session()
        if not values:
            assert (
                session.send(MESSAGES[0]["content"], json_schema=SCHEMA).result().ids == shaped.ids
            )
    assert shaped.thinking == free.thinking
    assert (json.loads(shaped.text), shaped.finish_reason) == ({"a": 7}, "stop")


def test_an_answer_comes_before_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """A model that would end its reply in the middle of a thought goes on."""
    pytest.importorskip("llguidance")
    with that_says("So", monkeypatch, values=BEGUN) as llm:
        free = llm.chat(MESSAGES, template_values=BEGUN)
        shaped = llm.chat(MESSAGES, template_values=BEGUN, json_schema=SCHEMA, max_tokens=30)
    assert free.thinking == "So" and free.finish_reason == "stop"
    assert shaped.thinking.startswith("So") and len(shaped.ids) == 30
    assert shaped.finish_reason == "length"


def test_where_only_letters_end_a_thought_all_of_the_reply_has_the_form() -> None:
    pytest.importorskip("llguidance")
    with LLM(fakes.fake_model(template=CHAT, context=2048)) as llm:
        reply = llm.chat(MESSAGES, template_values=BEGUN, json_schema=SCHEMA)
    assert (json.loads(reply.text), reply.thinking) == ({"a": 7}, "")


def test_a_call_is_forced_behind_a_thought(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("llguidance")
    template = template_of(FORMS["hermes"]) + "{# </think> #}"
    function = tool("f", {"x": {"enum": [7]}})
    function["function"]["parameters"] |= {"required": ["x"], "additionalProperties": False}
    given: Any = {"tools": [function], "template_values": BEGUN}
    choice = {"type": "function", "function": {"name": "f"}}
    with that_says("I must.</think>No!", monkeypatch, template, BEGUN, [function]) as llm:
        reply = llm.chat(MESSAGES, tool_choice=choice, **given)
    assert (reply.thinking, reply.text, reply.finish_reason) == ("I must.", "", "stop")
    assert [(call.name, call.arguments) for call in reply.tool_calls] == [("f", '{"x": 7}')]


def test_before_an_answer_that_has_a_form_nothing_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("llguidance")
    for said in (
        "<|channel|>commentary<|message|>Hello<|end|><|start|>assistant<|channel|>final<|message|>x",
        "<|channel|>commentary to=functions.f<|message|>{}",
        " to=functions.f<|channel|>commentary<|message|>{}",
        "<|channel|>analysis<|message|>Hm.<|end|><|start|>user<|message|>x",
    ):
        for budget in (None, 0, 3, 20):
            with that_says(said, monkeypatch, HARMONY) as llm:
                reply = llm.chat(
                    MESSAGES, json_schema=SCHEMA, thinking_budget=budget, max_tokens=300
                )
            if budget is not None or reply.finish_reason == "stop":
                assert json.loads(reply.text) == {"a": 7}
            assert not reply.text or json.loads(reply.text) == {"a": 7}


def test_no_end_may_stand_between_a_thought_and_its_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    with that_says(REPLY, monkeypatch) as llm:
        closing = llm.tokenizer.controls.id_of("</think>")
        assert llm.chat(MESSAGES, stop_ids=[closing]).finish_reason == "stop"
        with pytest.raises(SamplingError, match=f"stop_ids holds {closing}, by which"):
            llm.chat(MESSAGES, stop_ids=[closing], thinking_budget=5)
