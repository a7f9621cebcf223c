"""Templates are told whether to think, and what else they read."""

import datetime
import functools

import pytest

from edgerun.errors import InputError
from edgerun.llm.options import LoadOptions
from edgerun.model.chat import template as template_module
from edgerun.model.chat.switches import check_switches, set_switches
from edgerun.model.chat.template import ChatTemplate

QUESTION = [{"role": "user", "content": "Why?"}]
SWITCHED = (
    "{{ bos_token }}{{ messages[-1].content }}"
    "{% if enable_thinking is defined and not enable_thinking %}<think></think>{% endif %}"
    "{% if effort is defined %}"
    "{% if effort is none %}{{ raise_exception('no effort') }}{% endif %}{{ effort.level }}"
    "{% endif %}"
)
NEVER = "{% if enable_thinking %}{{ raise_exception('never') }}{% endif %}"
SILENT = "{{ messages[-1].content }} (I am thinking; enable_thinking)"


def nested(depth: int) -> list:
    return functools.reduce(lambda inner, _: [inner], range(depth), [])


def template(source: str | None) -> ChatTemplate:
    return ChatTemplate(source, {"bos_token": "<s>"})


@pytest.mark.parametrize(
    ("name", "closed"),
    [
        ("Qwen-Qwen3-0.6B", "<think>\n\n</think>\n\n"),
        ("Qwen3.5-4B", "<think>\n\n</think>\n\n"),
        ("deepseek-ai-DeepSeek-V3.1", "</think>"),
    ],
)
def test_real_templates_close_the_thinking_they_are_not_to_do(name, closed, shared_data):
    source = (shared_data / "chat_templates" / f"{name}.jinja").read_text()
    texts = {}
    for think in (True, False, None):
        each = template(source)
        set_switches(each, {}, think)
        texts[think] = each.render(QUESTION)
    assert texts[False].endswith(closed) and not texts[True].endswith(closed)
    assert texts[None] in (texts[True], texts[False])


def test_a_switch_of_another_name_is_found(shared_data):
    path = shared_data / "chat_templates" / "ibm-granite-granite-3.3-2B-Instruct.jinja"
    switched = template(path.read_text())
    set_switches(switched, {}, True)
    assert "Write your thoughts between <think></think>" in switched.render(QUESTION)


def test_values_are_what_a_template_reads():
    switched = template(SWITCHED)
    set_switches(switched, {"effort": {"level": "high"}}, False)
    assert switched.render(QUESTION) == "<s>Why?<think></think>high"


def test_nothing_is_asked_of_a_template_that_is_told_nothing():
    broken = template("{% if %}")
    set_switches(broken, {}, None)
    assert broken.variables == {"bos_token": "<s>"}


@pytest.mark.parametrize(
    ("source", "values", "think", "sentence"),
    [
        (SILENT, {}, True, "no switch for thinking .enable_thinking or thinking.: leave think out"),
        (SILENT, {}, False, "no switch for thinking"),
        ("{% if enable_thinking %}", {}, True, "the chat template cannot be rendered"),
        (NEVER, {}, True, "refuses this conversation: never"),
        (None, {}, False, "no chat template that could be told anything"),
        (None, {"effort": 1}, None, "no chat template that could be told anything"),
        (SWITCHED, {"effor": 1}, None, "does not read 'effor': leave it out"),
        (SWITCHED, {"bos_token": "x"}, None, "'bos_token', which the model's tokenizer says"),
        (SWITCHED, {"enable_thinking": True}, False, "which think says too: leave one of them out"),
        (SWITCHED, {"effort": None}, None, "the chat template refuses this conversation"),
    ],
)
def test_what_a_template_cannot_be_told_is_refused(source, values, think, sentence):
    refusing = template(source)
    with pytest.raises(InputError, match=sentence):
        set_switches(refusing, values, think)


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ("high", "template_values is 'high'; expected names and values"),
        ({1: 2}, "has 1 as a name"),
        ({"a-b": 2}, "has 'a-b' as a name"),
        ({"messages": []}, "'messages', which is made of the conversation"),
        ({"date": datetime.date(2026, 1, 1)}, "something that is not JSON"),
        ({"date": nested(100_000)}, "something that is not JSON"),
    ],
)
def test_values_without_a_name_or_a_form_are_refused(values, sentence):
    for check in (check_switches, lambda values: LoadOptions(template_values=values)):
        with pytest.raises(InputError, match=sentence):
            check(values)


def test_thinking_is_on_or_off():
    with pytest.raises(InputError, match="think is 'yes'; expected True, False or None"):
        LoadOptions(think="yes")


def test_a_render_that_a_limit_ends_makes_no_difference(monkeypatch):
    box = template_module.sandbox()
    answers = iter([{"error": "it needs more time", "is_limit": True}] * 2)
    asked = box.ask
    monkeypatch.setattr(box, "ask", lambda *a, **k: next(answers, None) or asked(*a, **k))
    with pytest.raises(InputError, match="cannot be rendered: it needs more time"):
        set_switches(template(SWITCHED), {}, True)
