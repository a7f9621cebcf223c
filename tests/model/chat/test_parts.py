"""Templates that read content in parts alone, of models that see pictures as well."""

from __future__ import annotations

from typing import Any

import pytest

from edgerun.errors import InputError
from edgerun.model.chat import template as module
from edgerun.model.chat.format import ChatFormat
from edgerun.model.chat.template import ChatTemplate
from tests.model.chat.test_template import CONVERSATIONS, REAL, by_jinja2
from tests.support.bundles import GOLDEN

# As SmolVLM and LLaVA have them.
SMOLVLM = """<|im_start|>{% for message in messages %}{{message['role'] | capitalize}}{% if \
message['content'][0]['type'] == 'image' %}{{':'}}{% else %}{{': '}}{% endif %}{% for line in \
message['content'] %}{% if line['type'] == 'text' %}{{line['text']}}{% elif line['type'] == \
'image' %}{{ '<image>' }}{% endif %}{% endfor %}<end_of_utterance>
{% endfor %}{% if add_generation_prompt %}{{ 'Assistant:' }}{% endif %}"""
LLAVA = """{% for message in messages %}{{ message.role.upper() }}: {% for content in \
message.content | selectattr('type', 'equalto', 'image') %}<image>{% endfor %}{% for content in \
message.content | selectattr('type', 'equalto', 'text') %}{{ content.text + ' ' }}{% endfor %}\
{% endfor %}{% if add_generation_prompt %}ASSISTANT:{% endif %}"""
# As Gemma 3 and Mistral Small 3.1 have them: content may be a text, too.
EITHER = """{{ bos_token }}{% for m in messages %}[{{ m.role }}]{% if m.content is string %}\
{{ m.content | trim }}{% else %}{% for part in m.content %}<part>{{ part['text'] }}{% endfor %}\
{% endif %}{% endfor %}"""
PLAIN = "{% for m in messages %}{{ m.content }}{% endfor %} in text"
LONG = "{% for m in messages %}{{ m.text }}{% endfor %}"


def in_parts(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{**each, "content": [{"type": "text", "text": each["content"]}]} for each in messages]


@pytest.mark.parametrize("source", [SMOLVLM, LLAVA], ids=["smolvlm", "llava"])
@pytest.mark.parametrize("name", ["question", "chat", "thinking"])
def test_a_text_is_given_as_one_part(source: str, name: str) -> None:
    """As jinja2 renders what transformers' own examples for these models pass."""
    messages = CONVERSATIONS[name]
    expected = by_jinja2(source, messages=in_parts(messages), add_generation_prompt=True)
    template = ChatTemplate(source)
    assert template.render(messages) == expected
    assert all(each["content"] in expected for each in messages)
    assert list(template.render_many([{"messages": messages}])) == [expected]


@pytest.mark.parametrize("source", [EITHER, PLAIN, LONG], ids=["either", "plain", "neither"])
def test_a_text_remains_one_where_the_template_takes_it(source: str) -> None:
    messages = CONVERSATIONS["chat"]
    expected = by_jinja2(source, messages=messages, bos_token="<s>")
    assert ChatTemplate(source, {"bos_token": "<s>"}).render(messages) == expected


def test_calls_of_tools_have_no_content_to_give_in_parts() -> None:
    calls: dict[str, Any] = {"role": "assistant", "content": None, "tool_calls": [{"id": 1}]}
    source = (
        "{% for m in messages %}{{ m.role }}{% for part in m.content or [] %}{{ part.text }}"
        "{% endfor %}{% endfor %}"
    )
    without = {"role": "assistant", "tool_calls": []}
    messages = [{"role": "user", "content": "x"}, calls, without]
    assert ChatTemplate(source).render(messages) == "userxassistantassistant"


def test_a_template_that_names_no_text_is_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[bytes] = []
    sandbox = module.sandbox()
    ask = sandbox.ask

    def counted(*arguments: Any, **options: Any) -> Any:
        asked.append(arguments[2])
        return ask(*arguments, **options)

    monkeypatch.setattr(sandbox, "ask", counted)
    silent = ChatTemplate("{% for m in messages %}{{ m.content }}{% endfor %}")
    assert [silent.render(CONVERSATIONS["question"]) for _ in range(2)]
    assert len(asked) == 2
    template = ChatTemplate(SMOLVLM)
    assert [template.render(CONVERSATIONS["question"]) for _ in range(2)]
    assert len(asked) == 5  # once, whatever is rendered


def test_a_render_that_a_limit_ends_decides_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    sandbox = module.sandbox()
    ask, busy = sandbox.ask, [True]

    def asked(*arguments: Any, **options: Any) -> Any:
        if busy:
            return {"error": "it needs more time", "is_limit": True}
        return ask(*arguments, **options)

    monkeypatch.setattr(sandbox, "ask", asked)
    template, messages = ChatTemplate(SMOLVLM), CONVERSATIONS["question"]
    with pytest.raises(InputError, match="cannot be rendered: it needs more time"):
        template.render(messages)
    busy.clear()
    assert messages[0]["content"] in template.render(messages)


def test_no_text_in_parts_becomes_a_control_token() -> None:
    from edgerun.model.text.tokenizer import Tokenizer

    folder = GOLDEN / "llama"
    tokenizer = Tokenizer.from_json((folder / "tokenizer.json").read_text(), {})
    chat = ChatFormat(tokenizer, ChatTemplate(SMOLVLM.replace("<|im_start|>", "<s>")))
    ids = chat.encode([{"role": "user", "content": "a <s> and </s>"}]).ids
    assert list(ids).count(256) == 1
    assert 257 not in ids
    assert chat.encode([{"role": "user", "content": [{"type": "text", "text": "one"}]}]).text == (
        "<s>User: one<end_of_utterance>\nAssistant:"
    )


@pytest.mark.skipif(not REAL.is_dir(), reason="the real templates are not in this checkout")
def test_real_templates_take_texts() -> None:
    for path in sorted(REAL.glob("*.jinja")):
        template = ChatTemplate(path.read_text("utf-8"), {"bos_token": "<s>", "eos_token": "</s>"})
        assert not (template._reads_parts is None and template._asks_for_parts()), path.stem
