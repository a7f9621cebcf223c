"""Conversations become ids, and their content never becomes control tokens."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any
from urllib.parse import quote

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgerun.errors import InputError, PromptError
from edgerun.model.chat import renderer
from edgerun.model.chat.conversation import MAX_DEPTH
from edgerun.model.chat.format import ChatFormat
from edgerun.model.chat.template import ChatTemplate
from tests.support import fakes

TOKENIZER = fakes.byte_tokenizer()
VARIABLES = TOKENIZER.special_token_variables()
TEMPLATES = {
    "plain": fakes.CHATML,
    "trimming": fakes.CHATML.replace("message.content", "message.content | trim"),
    "removing": fakes.CHATML.replace("message.content", "message.content.replace('<img>', '')"),
    "json": fakes.CHATML.replace("message.content", "message | tojson"),
    "named": fakes.CHATML.replace("message.content", "'<|' + message.content + '|>'"),
    "first letter": fakes.CHATML.replace("message.content", "'<' ~ message.content"),
    "splitting": fakes.CHATML.replace("message.content", "message.content.split('<think>')[-1]"),
}
FORMATS = {
    name: ChatFormat(TOKENIZER, ChatTemplate(source, VARIABLES))
    for name, source in TEMPLATES.items()
}
CONTROL_IDS = {fakes.BOS, fakes.START, fakes.END, fakes.THINK}
CONTENT = st.lists(
    st.one_of(
        st.sampled_from(
            [*fakes.SPECIALS, "<think>", "<img>", "<|", "|>", "im_end", "<", " ", "\n"]
        ),
        st.text(max_size=3),
    ),
    max_size=8,
).map("".join)


def controls(ids: tuple[int, ...]) -> list[int]:
    return [id_ for id_ in ids if id_ in CONTROL_IDS]


def user(content: Any) -> dict[str, Any]:
    return {"role": "user", "content": content}


@pytest.mark.parametrize("name", TEMPLATES)
@settings(max_examples=60, deadline=None)
@given(contents=st.lists(CONTENT, min_size=1, max_size=3))
def test_content_adds_no_control_tokens(name: str, contents: list[str]) -> None:
    harmless = FORMATS[name].encode([user("x") for _ in contents])
    chat = FORMATS[name].encode([user(content) for content in contents])
    assert controls(chat.ids) == controls(harmless.ids)


@settings(max_examples=60, deadline=None)
@given(content=CONTENT)
def test_content_arrives_unchanged(content: str) -> None:
    before = TOKENIZER.encode_template("<|bos|><|im_start|>user\n")
    after = TOKENIZER.encode_template("<|im_end|>\n<|im_start|>assistant\n")
    ids = FORMATS["plain"].encode([user(content)]).ids
    assert list(ids) == before + TOKENIZER.encode(content, bos=False) + after


@pytest.mark.parametrize("content", ["caf\udce9", [{"type": "text", "text": "\ud800"}]])
def test_surrogates_in_a_message_are_a_prompt_error(content: object) -> None:
    with pytest.raises(PromptError, match="a message contains a surrogate code point"):
        FORMATS["plain"].encode([{"role": "user", "content": content}])


def test_what_json_cannot_name_is_an_input_error() -> None:
    with pytest.raises(InputError, match="the messages cannot be written as JSON: keys must be"):
        FORMATS["plain"].encode([{**user("x"), "at": {(1, 2): 3}}])


def test_tool_calls_and_names_add_no_control_tokens() -> None:
    chat = FORMATS["json"].encode(
        [
            user("x"),
            {
                "role": "assistant",
                "content": None,
                "tool_calls": [{"type": "function", "function": {"name": "<|im_end|>"}}],
            },
            {
                "role": "tool",
                "name": "<|im_start|>",
                "content": [{"type": "text", "text": "<think>"}],
            },
        ]
    )
    assert len(controls(chat.ids)) == 1 + 3 * 2 + 1


def test_tags_in_a_models_reply_stay_effective_but_special_tokens_do_not() -> None:
    reply = {"role": "assistant", "content": "<think>a<|im_end|>"}
    ids = FORMATS["plain"].encode([user("x"), reply, user("y")]).ids
    assert ids.count(fakes.THINK) == 1
    assert ids.count(fakes.END) == 3


def test_a_marker_in_the_text_makes_another_one_be_used() -> None:
    reserved = "".join(map(chr, range(0xFDD0, 0xFDF0)))
    content = reserved + "<|im_end|>" + json.dumps(reserved) + quote(reserved)
    chat = FORMATS["plain"].encode([user(content)])
    assert content in TOKENIZER.decode(chat.ids)
    assert controls(chat.ids).count(fakes.END) == 1


def test_ids_of_a_reply_are_kept_when_the_conversation_goes_on() -> None:
    chat_format = FORMATS["plain"]
    chat = chat_format.encode([user("x")])
    # The model spelled its reply in a way that the tokenizer would not: as the tag's letters.
    generated = list(b"<think>")
    before = chat_format.extended(chat, "<think>", generated)
    messages = [user("x"), {"role": "assistant", "content": "<think>"}, user("y")]
    follow = chat_format.encode(messages, before=before)
    assert follow.ids[: len(before.ids)] == before.ids
    assert fakes.THINK in chat_format.encode(messages).ids


@pytest.mark.parametrize(("end", "is_kept"), [("<|im_end|>", True), ("\n", False)])
def test_ids_of_a_reply_are_kept_where_a_control_token_ends_it(end: str, is_kept: bool) -> None:
    """Elsewhere a token may be spelled across its end."""
    source = "{% for m in messages %}{{ m.role }}: {{ m.content }}END{% endfor %}".replace(
        "END", end
    )
    chat_format = ChatFormat(TOKENIZER, ChatTemplate(source))
    messages = [user("x"), {"role": "assistant", "content": "ab"}, user("y")]
    chat = chat_format.encode([user("x")])
    chat = replace(chat, text=f"{chat.text}assistant: ", ids=(*chat.ids, *b"assistant: "))
    before = chat_format.extended(chat, "ab", [98, 97])
    follow = chat_format.encode(messages, before=before)
    assert (follow.ids[: len(before.ids)] == before.ids) == is_kept
    assert (follow == chat_format.encode(messages)) == (not is_kept)


def test_a_changed_conversation_forgets_the_ids_of_replies() -> None:
    chat_format = FORMATS["plain"]
    before = chat_format.extended(chat_format.encode([user("x")]), "r", [114])
    other = [user("z"), {"role": "assistant", "content": "r"}, user("y")]
    assert chat_format.encode(other, before=before) == chat_format.encode(other)


@pytest.mark.parametrize("name", ["plain", "removing", "named"])
def test_many_conversations_have_the_ids_of_each_alone(name: str) -> None:
    """Some of them need another disguise than the first, and one does not fit into a batch."""
    contents = ["x", "<img>", "<|im_end|>", "", "user", "im_end", "y" * 5000, "long " * 20_000]
    conversations = [[user(content)] for content in contents]
    many = FORMATS[name].encode_many(conversations)
    assert many == [FORMATS[name].encode(messages) for messages in conversations]
    with pytest.raises(PromptError, match="has no content"):
        FORMATS[name].encode_many([*conversations, [{"role": "user"}]])
    with pytest.raises(PromptError, match="the context is 600"):
        FORMATS["plain"].encode_many(conversations, context=600)


def test_a_conversation_that_fails_among_many_says_what_it_says_alone() -> None:
    source = """{% if 'no' in messages[0].content %}{{ raise_exception('not that') }}{% endif %}
    {% if 'loop' in messages[0].content %}{% for i in range(99999) %}{% for j in range(99999) %}x
    {% endfor %}{% endfor %}{% endif %}{{ messages[0].content }}"""
    chat_format = ChatFormat(TOKENIZER, ChatTemplate(source, VARIABLES))
    good = [[user("a")], [user("b")]]
    for content, words in (("no", "refuses this conversation: not that"), ("loop", "cannot be")):
        with pytest.raises(InputError, match=words) as alone:
            chat_format.encode([user(content)])
        with pytest.raises(InputError) as among_many:
            chat_format.encode_many([good[0], [user(content)], good[1]])
        assert str(among_many.value) == str(alone.value)
    assert chat_format.encode_many(good) == [chat_format.encode(each) for each in good]


def test_conversations_that_take_too_much_together_are_rendered_apart(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sizes = []

    def ask(module: str, request: Any, payload: bytes = b"", **limits: Any) -> Any:
        sizes.append(len(json.loads(payload)))
        if sizes[-1] > 1:
            return {"error": "it needs more than is allowed"}
        return {"rendered": [{"text": each["messages"][0]} for each in json.loads(payload)]}

    monkeypatch.setattr("edgerun.model.chat.template.sandbox", lambda: FakeSandbox(ask))
    texts = ChatTemplate("x").render_many([{"messages": [name]} for name in "abc"])
    assert next(texts) == "a"
    assert sizes == [3, 1]  # the others wait until they are asked for
    assert [*texts] == ["b", "c"]


def test_conversations_that_say_too_much_together_are_refused_together(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each alone may do; the sandbox has no more memory for many."""
    monkeypatch.setattr(renderer, "MAX_OUTPUT_CHARACTERS", 10)
    request = {"source": "{{ x }}", "fuel": 1000}
    texts = [{"x": "a" * 6}, {"x": "b" * 4}]
    expected = {"rendered": [{"text": "a" * 6}, {"text": "b" * 4}]}
    assert renderer.answer(request, json.dumps(texts).encode()) == expected
    with pytest.raises(ValueError, match="it produced 11 characters"):
        renderer.answer(request, json.dumps([*texts, {"x": "c"}]).encode())


class FakeSandbox:
    """Answers as a function does."""

    def __init__(self, ask: Any) -> None:
        self.ask = ask


BAD: list[Any] = [
    [],
    ["text"],
    [{"role": "user"}],
    [{"role": "assistant", "content": None}],
    [{"role": "assistant", "content": None, "tool_calls": []}],
    [{"content": "x"}],
    [{"role": "root", "content": "x"}],
    [{"role": "<|im_end|>", "content": "x"}],
    [{"role": ["user"], "content": "x"}],
    [user(5)],
    [user([{"type": "<|im_end|>", "text": "x"}])],
    [{"role": "assistant", "content": "x", "reasoning_content": 5}],
    [{"role": "assistant", "content": [], "thinking": ["x"]}],
]


@pytest.mark.parametrize("messages", BAD)
def test_unusable_messages_are_a_prompt_error(messages: Any) -> None:
    with pytest.raises(PromptError):
        FORMATS["plain"].encode(messages)


def test_what_developers_say_the_system_says_where_models_know_no_developers() -> None:
    system, developer = ({"role": role, "content": role} for role in ("system", "developer"))
    joined = {"role": "system", "content": "system\n\ndeveloper"}
    later = {"role": "system", "content": "developer"}
    for messages, expected in (
        ([system, developer, user("x")], [joined, user("x")]),
        ([developer, user("x"), developer], [later, user("x"), later]),
        ([system, system, user("x")], [system, system, user("x")]),
    ):
        said = FORMATS["plain"].encode(messages).text
        assert said == FORMATS["plain"].encode(expected).text


FIRST = """{% if messages[0].role in ['system', 'developer'] %}{{ messages[0].role }}:
{{ messages[0].content }}{% endif %}"""


@pytest.mark.parametrize("name", ["", "Reka-Edge"])
def test_developers_are_heard_by_templates_that_show_the_first_message(
    name: str, request: pytest.FixtureRequest
) -> None:
    source = FIRST
    if name:
        folder = request.getfixturevalue("shared_data") / "chat_templates"
        source = (folder / f"{name}.jinja").read_text("utf-8")
    chat_format = ChatFormat(TOKENIZER, ChatTemplate(source, VARIABLES))
    texts = {"system": "Be brief.", "developer": "Rhyme."}
    for roles in (("system", "developer"), ("developer", "system"), ("developer", "developer")):
        several = [{"role": role, "content": texts[role]} for role in roles]
        one = {"role": roles[0], "content": "\n\n".join(texts[role] for role in roles)}
        said = chat_format.encode([*several, user("x")]).text
        assert said == chat_format.encode([one, user("x")]).text
        assert all(texts[role] in said for role in roles)


def test_deep_nesting_is_refused() -> None:
    deep: Any = "x"
    for _ in range(MAX_DEPTH + 2):
        deep = [deep]
    with pytest.raises(PromptError, match="nested"):
        FORMATS["plain"].encode([user(deep)])


@pytest.mark.parametrize("content", ["im_end", "im_end|>", "|im_end", "|im_end|>", "|im_end|> x"])
@pytest.mark.parametrize("name", ["named", "first letter"])
def test_content_cannot_complete_what_a_template_begins(name: str, content: str) -> None:
    assert FORMATS[name].encode([user(content)]).ids.count(fakes.END) == 1
