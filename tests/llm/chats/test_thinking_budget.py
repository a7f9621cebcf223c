"""Thoughts may be bounded; so is nothing else."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from edgerun.engine.chooser.candidates import Candidates
from edgerun.engine.constraints.budget import ThinkingBudget
from edgerun.engine.constraints.later import ForAnswer
from edgerun.engine.sampling.structure import Structure
from edgerun.errors import SamplingError
from edgerun.llm.llm import LLM
from edgerun.model.chat.thinking.form import AnswerStart, Path
from tests.llm.chats.test_thinking import (
    BEGUN,
    CHAT,
    HARMONIOUS,
    HARMONY,
    REPLY,
    SCHEMA,
    ids_of,
    that_says,
)
from tests.model.chat.test_disguise import tokenizer_for
from tests.model.chat.tools.replies import MESSAGES, tool
from tests.support import fakes

GEMMA = """\
{% for message in messages %}<|turn>{{ message.role }}
{{ message.content }}<turn|>
{% endfor %}{% if add_generation_prompt %}<|turn>model
{% endif %}{# <|channel> <channel|> #}"""


@pytest.mark.parametrize("budget", [0, 1, 3, 5, 60])
@pytest.mark.parametrize(
    ("template", "values", "before"),
    [
        (CHAT, {}, "<think>"),
        (CHAT, {}, "\n<think>\n"),
        (CHAT, BEGUN, ""),
        (GEMMA, {}, "<|channel>thought\n"),
        (HARMONY, {}, "<|channel|>analysis<|message|>"),
    ],
    ids=["thinks", "blank before", "goes on", "label", "channels"],
)
def test_thoughts_may_be_bounded(
    template: str, values: Any, before: str, budget: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The model would think on for ever; what it then says is its answer, and nothing else is."""
    long = before + "x" * 1000
    with that_says(long, monkeypatch, template, values) as llm:
        asked: dict[str, Any] = {"template_values": values, "max_tokens": 200}
        reply = llm.chat(MESSAGES, thinking_budget=budget, **asked)
        free = llm.chat(MESSAGES, **asked)
        start = llm._format.answer_start(llm._format.encode(MESSAGES, variables=values))
        tokens, head = ids_of(long, llm.tokenizer), len(ids_of(before, llm.tokenizer))
    assert start and free.text == "" and len(free.ids) == len(reply.ids) == 200
    (way,) = [path.ids for path in start.ways if path.answers]
    if budget == 0:  # nothing may have begun that would have to end
        way = next((path.ids for path in start.beginnings if path.answers), way)
    at = next(
        at for at in range(200) if tuple(reply.ids[at:][: len(way)]) == way or at > budget + head
    )
    assert reply.ids[:at] == tokens[:at] and at <= max(budget, head)
    assert reply.thinking == "x" * (at - head) if at > head else set(reply.thinking) <= set("thoug")
    text = "".join(chr(id_) for id_ in reply.ids[at + len(way) :] if id_ < 128)
    assert reply.text.strip() == text.strip()


def test_a_thought_that_ends_in_time_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    for template, reply in ((CHAT, REPLY), (CHAT, "No thought."), (HARMONY, HARMONIOUS)):
        with that_says(reply, monkeypatch, template) as llm:
            free = llm.chat(MESSAGES)
            assert llm.chat(MESSAGES, thinking_budget=60).ids == free.ids
            pieces = list(llm.session().send(MESSAGES[0]["content"], thinking_budget=60))
            assert "".join(pieces) == free.text


def test_only_thoughts_that_a_token_ends_can_be_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    with LLM(fakes.fake_model(template=CHAT, context=2048)) as llm:
        with pytest.raises(SamplingError, match="thinking_budget is for models that think"):
            llm.chat(MESSAGES, thinking_budget=5)
        with pytest.raises(SamplingError, match="thinking_budget is for chats"):
            llm.generate("x", thinking_budget=5)
    pytest.importorskip("llguidance")
    with that_says(REPLY, monkeypatch) as llm:
        reply = llm.chat(MESSAGES, thinking_budget=4, json_schema=SCHEMA)
    assert (reply.thinking, json.loads(reply.text)) == ("Is", {"a": 7})


def allowed(filter_: Any, vocab_size: int) -> list[int]:
    left = filter_.apply(Candidates(np.zeros(vocab_size, np.float32))).logits
    return np.flatnonzero(np.isfinite(left)).tolist()


STARTS = {
    "thinks": (AnswerStart((Path((1,), True),), (Path((2,), False),), may_answer=True), [2, 65, 1]),
    "answers": (AnswerStart((Path((1,), True),), (Path((2,), False),), may_answer=True), []),
    "goes on": (AnswerStart((Path((1,), True),), begun=True), [65, 66, 1]),
    "channels": (
        AnswerStart(
            (Path((1, 2, 97), False), Path((1, 2, 98), True)),
            (Path((2, 97), False), Path((2, 98), True)),
        ),
        [2, 97, 66, 66, 1, 2, 97, 65, 1, 2, 98],
    ),
}


@pytest.mark.parametrize("name", STARTS)
def test_what_is_taken_back_is_forgotten(name: str) -> None:
    """Drafts and interrupts take ids back, across the beginning of an answer too."""
    pytest.importorskip("llguidance")
    tokenizer = tokenizer_for("<think></think>")
    start, before = STARTS[name]
    structure = Structure(regex="[ab]{4}").with_vocabulary(tokenizer)
    filters: list[Any] = [
        ForAnswer(structure, start).begin([], tokenizer.vocab_size),
        ThinkingBudget(start, 3).begin([], tokenizer.vocab_size),
    ]
    shaped, bounded = filters
    shaped.end_with([tokenizer.eos_ids[0]])
    states: list[Any] = []
    reply = [*before, *b"abba"]
    for id_ in reply:
        states.append(
            ([allowed(each, tokenizer.vocab_size) for each in filters], shaped.is_complete())
        )
        assert id_ in states[-1][0][0]
        for each in filters:
            each.accept(id_)
    assert shaped.is_complete()
    for id_, state in zip(reversed(reply), reversed(states), strict=True):
        for each in filters:
            each.undo(id_)
        now = [allowed(each, tokenizer.vocab_size) for each in filters]
        assert (now, shaped.is_complete()) == state
        for each in filters:
            each.accept(id_)
            each.undo(id_)
    assert bounded


CALLED = (
    "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>commentary"
    ' to=functions.f <|constrain|>json<|message|>{"x": "aaaaaaaaaaaaaaaaaaaa"}'
)


@pytest.mark.parametrize("budget", [14, 20, 60])
def test_calls_and_messages_are_no_thoughts(budget: int, monkeypatch: pytest.MonkeyPatch) -> None:
    template = HARMONY.replace(
        "{%- else %}<|start|>",
        "{%- for call in message.tool_calls or [] %}<|start|>assistant to=functions."
        "{{ call.function.name }}<|channel|>commentary json<|message|>"
        "{{ call.function.arguments | tojson }}<|call|>{% endfor %}"
        "{%- else %}{{ tools | tojson if tools else '' }}<|start|>",
    )
    tools = [tool("f", {"x": {"type": "string"}})]
    with that_says(CALLED, monkeypatch, template, tools=tools) as llm:
        reply = llm.chat(MESSAGES, tools=tools, thinking_budget=budget, max_tokens=150)
    assert (reply.thinking, reply.text) == ("Hm.", "")
    assert [call.arguments for call in reply.tool_calls] == [f'{{"x": "{"a" * 20}"}}']
    assert reply.thinking_tokens == len("Hm.") + 2
    preamble = "<|channel|>commentary<|message|>I will look it up.<|end|>"
    preamble += "<|start|>assistant<|channel|>final<|message|>Hi!"
    with that_says(preamble, monkeypatch, HARMONY) as llm:
        reply = llm.chat(MESSAGES, thinking_budget=1)
    assert reply.text == "I will look it up.\n\nHi!"
