"""Replies that call functions, for tests: forms, readers, and values that arguments may have."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from hypothesis import strategies as st

from edgerun.llm.llm import LLM
from edgerun.model.chat.tools.form import CallForm, Written
from edgerun.model.chat.tools.functions import Functions
from edgerun.model.chat.tools.markers import Markers
from edgerun.model.chat.tools.reader import CallReader
from edgerun.model.chat.tools.recognition import forms
from edgerun.model.text.controls import ControlTokens
from edgerun.model.text.facts import AddedToken
from tests.support import fakes

FORMS = forms()
TYPES = {str: "string", bool: "boolean", int: "integer", float: "number", list: "array"}
TYPES |= {dict: "object", type(None): "null"}
MARKERS = sorted({part for form in FORMS.values() for part in (*form.openings, *form.markers)})
NAMES = st.from_regex(r"[A-Za-z0-9_-][A-Za-z0-9_.-]{0,12}", fullmatch=True)
KEYS = st.from_regex(r"[A-Za-z_][A-Za-z0-9_]{0,8}", fullmatch=True)
PIECES = [
    *MARKERS,
    "{",
    "}",
    "[",
    "]",
    '"',
    "'",
    "\\",
    "\n",
    " ",
    ",",
    ":",
    "é",
    "\U0001f600",
    "</",
]
PIECES += ["42", "true", "null", '{"name": "f"}', "<think>", "\x00", "\u2028", "</x>"]
TEXTS = st.one_of(st.text(), st.lists(st.sampled_from(PIECES), max_size=6).map("".join))
NUMBERS = st.one_of(
    st.integers(-(10**30), 10**30), st.floats(allow_nan=False, allow_infinity=False)
)


def values(texts: st.SearchStrategy[str], keys: st.SearchStrategy[str]) -> st.SearchStrategy[Any]:
    """Anything that JSON has, a few levels deep."""
    plain = st.one_of(st.none(), st.booleans(), NUMBERS, texts)
    return st.recursive(
        plain,
        lambda inner: st.one_of(
            st.lists(inner, max_size=3), st.dictionaries(keys, inner, max_size=3)
        ),
        max_leaves=6,
    )


def written(
    texts: st.SearchStrategy[str] = TEXTS, keys: st.SearchStrategy[str] = TEXTS
) -> st.SearchStrategy[list[Written]]:
    """One call, or several of different functions."""
    arguments = st.dictionaries(keys, values(texts, keys), max_size=4)
    calls = st.builds(Written, NAMES, arguments)
    return st.lists(calls, min_size=1, max_size=3, unique_by=lambda call: call.name)


def tool(name: str, properties: Mapping[str, Any] | None = None) -> dict[str, Any]:
    parameters = {"type": "object", "properties": properties or {}}
    return {"type": "function", "function": {"name": name, "parameters": parameters}}


def functions_of(calls: Iterable[Written]) -> Functions:
    """Functions whose schemas say the types that arguments of calls have."""
    return Functions(
        [
            tool(name, {key: {"type": TYPES[type(value)]} for key, value in arguments.items()})
            for name, arguments in calls
        ]
    )


def markers_of(form: CallForm, tokens: Sequence[str] = ()) -> Markers:
    """What stands for the control tokens of a form, of which a tokenizer has some, all hidden."""
    added = [AddedToken(id_, name, False, False, True) for id_, name in enumerate(tokens)]
    texts = [*form.openings, *form.markers, *tokens]
    return Markers(ControlTokens.of(added), texts, range(len(tokens)))


def read(
    form: CallForm,
    pieces: Iterable[str],
    functions: Functions,
    markers: Markers | None = None,
) -> tuple[str, list[tuple[str, Any]]]:
    """The text and the calls of a reply that comes in pieces."""
    reader = CallReader(form, functions, markers or markers_of(form), lambda name: "")
    events = [event for piece in pieces for event in reader.push(piece)]
    events += reader.finish()
    text = "".join(event for event in events if isinstance(event, str))
    calls = [event for event in events if not isinstance(event, str)]
    return text, [(call.name, json.loads(call.arguments)) for call in calls]


CHAT = """\
{% if tools %}{{ tools | tojson }}{% endif %}
{%- for message in messages -%}
<|im_start|>{{ message.role }}
{{ message.content }}
{%- if message.tool_calls -%}
@BEFORE{% for call in message.tool_calls %}@EACH{% endfor %}@AFTER
{%- endif -%}
<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% if thinking %}<think>{% endif %}{% endif %}"""
MESSAGES = [{"role": "user", "content": "What is the weather?"}]


def chat_of(before: str, each: str, after: str) -> str:
    """A template that writes calls so."""
    return CHAT.replace("@BEFORE", before).replace("@EACH", each).replace("@AFTER", after)


def template_of(form: CallForm) -> str:
    """A template that writes calls in a form."""
    assert form.shape is not None
    before, name, arguments, end, between, after = form.shape
    call = (
        f"{name}{{{{ call.function.name }}}}{arguments}{{{{ call.function.arguments | tojson }}}}"
    )
    between = f"{{% if not loop.last %}}{between or ''}{{% endif %}}"
    return chat_of(before, call + end + between, after)


def model_that_says(
    reply: str, template: str, tools: Sequence[Any] | None, values: Mapping[str, Any] | None = None
) -> LLM:
    """A model that says this to ``MESSAGES`` with some tools."""
    with LLM(fakes.fake_model(template=template, context=4096)) as model:
        (chat,) = model._format.encode_many([MESSAGES], tools=tools, variables=values)
    executable = fakes.saying(reply, len(chat.ids))
    return LLM(fakes.fake_model(executable, template=template, context=4096))


def use_form(name: str) -> dict[str, Any]:
    """What a model that has a form replies, with a call of a function and with one of none."""
    form = forms()[name]
    template, tools = template_of(form), [tool("f")]
    report: dict[str, Any] = {}
    for function in ("f", "g"):
        reply = "So: " + form.write([Written(function, {"x": 1})])
        with model_that_says(reply, template, tools) as llm:
            completion = llm.chat(MESSAGES, tools=tools)
            report["form"] = llm._format.calling.name
        calls = [(call.name, call.arguments) for call in completion.tool_calls]
        report[function] = [completion.text, calls]
    return report
