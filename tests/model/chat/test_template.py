"""Templates render as jinja2 renders them, and hostile ones end."""

from __future__ import annotations

import functools
import json
import time
from pathlib import Path
from typing import Any

import pytest

from edgerun.errors import InputError
from edgerun.model.chat.template import ChatTemplate, template_source

REAL = Path(__file__).parents[4] / "shared" / "data" / "chat_templates"
VARIABLES = {"bos_token": "<s>", "eos_token": "</s>", "functions": "[]", "datetime": "May 1"}
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "The weather in a <city> & more",
            "parameters": {
                "type": "object",
                "properties": {"city": {"type": "string", "description": "Cité"}},
                "required": ["city"],
            },
        },
    }
]
CALL = {
    "id": "abcdefghi",
    "type": "function",
    "function": {
        "name": "get_weather",
        "arguments": {"city": "Paris", "days": 3, "t": 20.0, "p": 1e-07},
    },
}
CONVERSATIONS: dict[str, list[dict[str, Any]]] = {
    "question": [{"role": "user", "content": "Hello é <b> & 'x' \"y\""}],
    "chat": [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "  Hello\n"},
        {"role": "assistant", "content": " Hi there. "},
        {"role": "user", "content": "Bye"},
    ],
    "thinking": [
        {"role": "user", "content": "Q"},
        {"role": "assistant", "content": "<think>\nhmm\n</think>\n\nA"},
        {"role": "user", "content": "Q2"},
    ],
    "thoughtful tools": [
        {"role": "system", "content": "Think."},
        {"role": "user", "content": "Weather?"},
        {"role": "assistant", "content": "<think>call</think>", "tool_calls": [CALL]},
        {
            "role": "tool",
            "name": "get_weather",
            "tool_call_id": "abcdefghi",
            "content": '{"t": 1.0}',
        },
        {
            "role": "assistant",
            "reasoning_content": "hm",
            "content": "<think>hm</think>20.0 degrees",
        },
        {"role": "user", "content": "ok"},
    ],
    "tools": [
        {"role": "user", "content": "Weather?"},
        {"role": "assistant", "content": "", "tool_calls": [CALL]},
        {"role": "tool", "name": "get_weather", "tool_call_id": "abcdefghi", "content": "sunny"},
        {"role": "assistant", "content": "It is sunny."},
        {"role": "user", "content": "ok"},
    ],
}
OWN = {
    "generation": "{% for m in messages %}{% generation %}{{ m.content }}{% endgeneration %}"
    "{%- generation -%} x {%- endgeneration -%}{% endfor %}",
    "json": "{{ messages | tojson }} {{ tools | tojson(indent=2) if tools else '' }}",
    "python": "{% for m in messages %}{{ m.get('content', '').strip().split(' ')[0].upper() }}"
    "{{ m['role'].startswith('a') }}{{ m.content.rstrip() ~ m.content.lstrip('Q') }}{% endfor %}",
    "printing": "{{ true }} {{ none }} {{ 1.5 }} {{ [1, 'a', none] }} {{ {'a': true} }}"
    "{{ ',' if false }}|{{ messages[0].nothing }}|{{ none is iterable }}",
    "control": "{% set ns = namespace(n=0) %}{% for m in messages %}{% if m.role == 'system' %}"
    "{% continue %}{% endif %}{% set ns.n = ns.n + 1 %}{% if ns.n > 1 %}{% break %}{% endif %}"
    "{{ loop.index0 }}{{ m.role }}{% endfor %}{{ ns.n }}{{ messages[-1]['content'] }}",
    "blocks": "  {% if add_generation_prompt %}\n  yes\n  {% endif %}\n{# note #}\nend\n",
    "indented": "{{ '{\\n' | indent(4, first=true) }}{{ messages | tojson(indent=2) | indent(3) }}",
    "macro": "{% macro show(m, end='.') %}{{ m.role }}:{{ m.content | trim }}{{ end }}"
    "{% endmacro %}{% for m in messages if m.role != 'tool' %}{{ show(m) }}{% endfor %}"
    "{{ bos_token }}",
    "sequences": "{{ 'a' is sequence }} {{ messages is sequence }} {{ {} is sequence }}"
    "{{ none is sequence }} {{ 1 is sequence }} {{ messages[0] is sequence }}",
    "floats": "{{ 1.0 | tojson }} {{ 2.50|tojson }} {{ messages | map(attribute='tool_calls') "
    "| select | list | tojson }}{% for m in messages if m.tool_calls %}"
    "{% for k, v in m.tool_calls[0].function.arguments.items() %}{{ v | tojson }} {{ v }} "
    "{{ v is number }} {{ v is float }} {{ v is integer }}{{ 'x' if v }}{% endfor %}{% endfor %}",
    "methods": "{% for m in messages %}{{ 'items' in m }} {{ \"keys\" not in m -}} "
    "{{ 'role' in m }}{% if 'content' in m and 'get' in messages[0] %}x{% endif %}"
    "{{ 'values' in nothing }}"
    "{{ 'items' in m.content }} {{ 'pop' in m.keys() }} {{ 'say \"items\" in m' }}{% endfor %}"
    "{% set x = ['items', {'copy': 1}] %}{{ 'items' in x }} {{ 'copy' in x[1] }} the 'items' in x",
    "refusing": "{% if messages[0].role == 'system' %}{{ raise_exception('no system') }}"
    "{% endif %}",
}


def by_jinja2(source: str, **context: Any) -> str:
    """Renders as transformers 5 does (utils/chat_template_utils.py), with jinja2."""
    return str(jinja2_template(source).render(**context))


@functools.cache
def jinja2_template(source: str) -> Any:
    """Compiled once, which takes most of the time."""
    jinja2 = pytest.importorskip("jinja2")
    from jinja2.ext import Extension, loopcontrols
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class Generation(Extension):
        tags = {"generation"}

        def parse(self, parser: Any) -> Any:
            line = next(parser.stream).lineno
            body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
            return jinja2.nodes.Scope(body, lineno=line)

    def refuse(message: str) -> None:
        raise jinja2.TemplateError(message)

    def tojson(value: Any, indent: Any = None, **options: Any) -> str:
        return json.dumps(value, indent=indent, **{"ensure_ascii": False, **options})

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols]
    )
    environment.filters["tojson"] = tojson
    environment.globals["raise_exception"] = refuse
    environment.globals["strftime_now"] = time.strftime
    return environment.from_string(source)


def compare(source: str) -> int:
    """Compares all conversations; returns how many jinja2 could render."""
    rendered = 0
    for messages in CONVERSATIONS.values():
        for tools in (None, TOOLS):
            for prompt in (True, False):
                context = {"tools": tools, "add_generation_prompt": prompt}
                try:
                    expected = by_jinja2(source, messages=messages, **context, **VARIABLES)
                except Exception:  # ours may be more lenient, for example about absent tools
                    continue
                assert ChatTemplate(source, VARIABLES).render(messages, **context) == expected
                rendered += 1
    return rendered


@pytest.mark.parametrize("name", OWN)
def test_templates_render_as_with_jinja2(name: str) -> None:
    assert compare(OWN[name]) >= 8


@pytest.mark.skipif(not REAL.is_dir(), reason="the real templates are not in this checkout")
@pytest.mark.parametrize("path", sorted(REAL.glob("*.jinja")), ids=lambda path: path.stem)
def test_real_templates_render_as_with_jinja2(path: Path) -> None:
    assert compare(path.read_text("utf-8")) >= 4


HOSTILE = {
    "loops": "{% for a in range(99999) %}{% for b in range(99999) %}x{% endfor %}{% endfor %}",
    "long range": "{% for i in range(10000000000) %}x{% endfor %}",
    "recursion": "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    "repeat": "{{ 'a' * 10000000000 }}",
    "large repeat": "{{ 'a' * 400000000 }}",
    "doubling": "{% set a = 'aaaaaaaaaaaaaaaa' %}" + "{% set a = a ~ a %}" * 40 + "{{ a }}",
    "list doubling": "{% set a = [1] %}" + "{% set a = a + a %}" * 40 + "{{ a | length }}",
    "captures": "{% set a = 'aaaaaaaa' %}" + "{% set a %}{{ a }}{{ a }}{% endset %}" * 40,
    "replace": "{% set a = 'a' * 50000 %}{{ a | replace('a', a) | replace('a', a) | length }}",
    "format": "{{ '%0999999999d' | format(1) }}",
    "indent": "{{ 'a\\n' * 10000 | indent(10000000) }}",
    "join": "{{ range(99999) | map('string') | join('x' * 100000) | length }}",
    "sort": "{% for i in range(1000) %}{{ range(99999) | sort(reverse=true) | first }}{% endfor %}",
    "power": "{{ 10 ** 10 ** 10 }}",
    "nesting": "{{ " + "(" * 50_000 + "1" + ")" * 50_000 + " }}",
    "blocks": "{% if 1 %}" * 20_000,
    "open": "{{ " * 50_000,
    "time": "{{ strftime_now('%Y' * 100000000) }}",
    "json": "{% set a = range(99999) | list %}"
    "{% for i in a %}{{ a | tojson | length }}{% endfor %}",
    "indented json": "{{ [[[[[[[[1]]]]]]]] | tojson(indent=100000000) }}",
    "huge number": "{{ 9" + "9" * 100_000 + " | tojson }}",
    "include": "{% include '/etc/passwd' %}",
    "attributes": "{{ messages.__class__.__mro__[1].__subclasses__() }}",
    "globals": "{{ raise_exception.__globals__['sys'].exit() }}",
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_templates_end_quickly(name: str) -> None:
    template = ChatTemplate(HOSTILE[name])
    ChatTemplate("x").render([])  # the process is up
    began = time.monotonic()
    try:
        text = template.render([{"role": "user", "content": "x"}])
        assert len(text) <= 1 << 24
    except InputError as error:
        assert "template" in str(error)
        assert "\n" not in str(error)
    # What the child may use is 45 ms of processor time. How long that takes depends on who else
    # wants the cores; without the limit these templates would run for minutes.
    assert time.monotonic() - began < 30
    assert ChatTemplate("still works").render([]) == "still works"


def test_a_large_conversation_is_far_from_the_limits() -> None:
    messages = [{"role": "user", "content": "word " * 200}] * 2000
    template = "{% for m in messages %}<|{{ m.role }}|>{{ m.content | trim }}\n{% endfor %}"
    assert len(ChatTemplate(template).render(messages)) > 2_000_000


def test_a_refusal_is_shown_with_the_templates_words() -> None:
    with pytest.raises(InputError, match="refuses this conversation: no system"):
        ChatTemplate(OWN["refusing"]).render(CONVERSATIONS["chat"])


@pytest.mark.parametrize("source", ["{% for %}", "{{ x.y.z }}", "{{ 1 / 0 }}", "{% nothing %}"])
def test_a_broken_template_is_one_sentence(source: str) -> None:
    with pytest.raises(InputError, match="the chat template cannot be rendered: ") as caught:
        ChatTemplate(source).render(CONVERSATIONS["chat"])
    assert "\n" not in str(caught.value)


def test_an_overlong_template_is_refused() -> None:
    with pytest.raises(InputError, match="at most"):
        ChatTemplate("x" * 300_000)


def test_messages_that_are_no_json_are_refused() -> None:
    with pytest.raises(InputError, match="JSON"):
        ChatTemplate("x").render([{"role": "user", "content": object()}])


def test_without_a_template_there_is_a_plain_one() -> None:
    template = ChatTemplate(None, VARIABLES)
    assert template.is_default
    assert template.render([{"role": "user", "content": " Hi "}]) == "<s>User: Hi\n\nAssistant:"


def test_the_template_of_a_model_comes_from_its_file_or_its_configuration() -> None:
    named = [{"name": "tool_use", "template": "t"}, {"name": "default", "template": "d"}]
    assert template_source({"chat_template": "a"}, "file") == "file"
    assert template_source({"chat_template": "a"}) == "a"
    assert template_source({"chat_template": named}) == "d"
    assert template_source({}) is None


@pytest.mark.parametrize(
    "source",
    [
        None,
        "{% generation %}{{ messages[0].content }}{% endgeneration %}",
        "{{ raise_exception('no') }}",
        "{{ messages[0].no.such.thing }}",
    ],
)
def test_what_some_conversation_may_suit_can_be_parsed(source: str | None) -> None:
    ChatTemplate(source).check()


@pytest.mark.parametrize("source", ["{% if", "{{ messages ", "{% for x in y %}", "{{" + "(" * 9999])
def test_a_syntax_error_is_found_without_a_conversation(source: str) -> None:
    with pytest.raises(InputError, match="the chat template cannot be parsed: syntax error: "):
        ChatTemplate(source).check()
