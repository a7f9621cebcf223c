"""What models think is told from what they answer, however a reply is cut into pieces."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgerun.model.chat.format import ChatFormat
from edgerun.model.chat.reply import ReplyReader
from edgerun.model.chat.template import ChatTemplate
from edgerun.model.chat.thinking.channels import Channels
from edgerun.model.chat.thinking.form import ThoughtForm
from edgerun.model.chat.thinking.forms import FORMS, thought_form
from edgerun.model.chat.thinking.reader import Thought, ThoughtReader
from edgerun.model.chat.thinking.tags import Tags
from edgerun.model.chat.tools.functions import Functions
from edgerun.model.chat.tools.markers import Markers
from edgerun.model.chat.tools.reader import CallReader
from edgerun.model.chat.tools.recognition import forms
from edgerun.model.text.controls import ControlTokens
from edgerun.model.text.facts import AddedToken
from tests.model.chat.test_disguise import tokenizer_for
from tests.model.chat.tools.replies import tool

TAGS = [form for form in FORMS if isinstance(form, Tags)]
THINK = Tags("<think>", "</think>", wrappings=(("<answer>", "</answer>"),))
HARMONY = Channels()
ANALYSIS, FINAL = "<|channel|>analysis<|message|>", "<|channel|>final<|message|>"
NEXT = "<|end|><|start|>assistant"


def controls_of(names: Sequence[str]) -> ControlTokens:
    return ControlTokens.of(
        AddedToken(id_, name, False, False, True) for id_, name in enumerate(names)
    )


def markers_of(form: ThoughtForm, tokens: Sequence[str] = (), more: Sequence[str] = ()) -> Markers:
    """What stands for the marks of a form, of which a tokenizer has some as hidden tokens."""
    return Markers(controls_of(tokens), [*form.texts, *more], range(len(tokens)))


def told(
    form: ThoughtForm,
    pieces: Iterable[str],
    *,
    begun: bool = False,
    markers: Markers | None = None,
    calls: CallReader | None = None,
) -> tuple[str, str, list[str]]:
    """Thoughts, text and names of calls of a reply that comes in pieces."""
    markers = markers or markers_of(form)
    reader = ReplyReader(markers, ThoughtReader(form, markers, begun=begun), calls)
    events = [event for piece in pieces for event in reader.push(piece)]
    events += reader.finish()
    thoughts = "".join(event.text for event in events if isinstance(event, Thought))
    text = "".join(event for event in events if isinstance(event, str))
    names = [event.name for event in events if not isinstance(event, str | Thought)]
    return thoughts, text, names


@pytest.mark.parametrize("form", TAGS, ids=lambda form: form.opening)
@pytest.mark.parametrize("begun", [False, True])
def test_a_thought_between_tags_comes_before_the_answer(form: Tags, begun: bool) -> None:
    thought = f"\nIs it {form.opening}?\n\n So: <i> \n"
    reply = f"{'' if begun else form.opening}{thought}{form.closing}\n\n Hi. \n"
    for pieces in ([reply], list(reply)):
        if begun:  # once more by the model itself
            again = told(form, [form.opening, *pieces], begun=True)
            assert again == told(form, pieces, begun=True)
        answer = "Hi." if form.ending else "Hi. \n"
        assert told(form, pieces, begun=begun) == (thought.strip(), answer, [])
        whole = [*pieces, form.ending, "\n"] if form.ending else []
        assert not whole or told(form, whole, begun=begun) == (thought.strip(), answer, [])


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.opening)
def test_a_reply_without_a_thought_is_text_as_it_is(form: ThoughtForm) -> None:
    for reply in ("\n Hi.\n\n", "", " \n", f"So {form.opening}no{form.closing} ", form.closing):
        for pieces in ([reply], list(reply)):
            assert told(form, pieces) == ("", reply, [])


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.opening)
def test_a_thought_that_is_cut_off_is_a_thought(form: ThoughtForm) -> None:
    reply = f"{form.opening}\nSo {form.closing[:-1]}"
    for pieces in ([reply], list(reply)):
        assert told(form, pieces) == (f"So {form.closing[:-1]}", "", [])
    assert told(form, ["So\n"], begun=True) == ("So", "", [])
    assert told(form, [f"{form.opening} \n{form.closing}"]) == ("", "", [])


def test_thoughts_come_as_soon_as_they_are_certain() -> None:
    markers = markers_of(THINK)
    reader = ReplyReader(markers, ThoughtReader(THINK, markers, begun=False), None)
    pieces = ["<th", "ink>\n", "a ", "b<", "c</thi", "nk>", "\n", "\nx", " ", "y"]
    expected = [[], [], [Thought("a")], [Thought(" b")], [Thought("<c")], [], [], ["x"], [" "]]
    assert [list(reader.push(piece)) for piece in pieces] == [*expected, ["y"]]


def test_what_answers_are_wrapped_in_is_left_out_where_it_is_the_models_own() -> None:
    reply = "<think>\n1\n</think>\n<answer>\nHi.\n</answer>\n"
    assert told(THINK, list(reply)) == ("1", "Hi.", [])
    assert told(THINK, ["<think>1</think><answer>Hi"]) == ("1", "Hi", [])
    inside = "<think>1</think><answer>Write </answer> or </ans. <b> </answer> \n"
    for pieces in ([inside], list(inside)):
        assert told(THINK, pieces) == ("1", "Write </answer> or </ans. <b>", [])
    assert told(THINK, ["<answer>Hi.</answer>"]) == ("", "<answer>Hi.</answer>", [])
    nobody = controls_of([])
    asked = thought_form("content.split('</think>')", nobody)
    assert asked and told(asked, [reply]) == ("1", "<answer>\nHi.\n</answer>\n", [])
    own = thought_form("'</think>' '</answer>'", nobody)
    assert own and told(own, [reply]) == ("1", "Hi.", [])


def test_where_a_mark_is_a_token_letters_are_none() -> None:
    markers = markers_of(THINK, ["<think>", "</think>"])
    opening, closing = markers.characters.values()
    letters = "<think>no</think>yes"
    assert told(THINK, [letters], markers=markers) == ("", letters, [])
    reply = f"{opening}a </think> b{closing}{letters}"
    assert told(THINK, list(reply), markers=markers) == ("a </think> b", letters, [])
    assert told(THINK, [f"Hi {opening}.{closing}"], markers=markers) == ("", "Hi .", [])


@pytest.mark.parametrize(
    ("reply", "expected"),
    [
        (f"{ANALYSIS}Hm. {NEXT}{FINAL}Hi.", ("Hm.", "Hi.")),
        (f"{ANALYSIS}a{NEXT}{ANALYSIS}b{NEXT}{FINAL}c<|end|>", ("a\n\nb", "c")),
        (f"{ANALYSIS}a{NEXT}<|channel|>commentary<|message|>b{NEXT}{FINAL}c", ("a", "b\n\nc")),
        (f"{ANALYSIS}a{NEXT}<|channel|>final <|constrain|>json<|message|>{{}}", ("a", "{}")),
        (f"{ANALYSIS}a{NEXT}<|channel|>final<|constrain|>json<|message|>{{}}", ("a", "{}")),
        (f"{ANALYSIS}\n a {NEXT}{ANALYSIS} \n b\n{NEXT}{FINAL} c ", ("a\n\nb", "c")),
        (f"{FINAL}Hi.", ("", "Hi.")),
        (f"{ANALYSIS}a{NEXT}<|chan", ("a", "<|start|>assistant<|chan")),
        (f"{ANALYSIS}a<|end|>", ("a", "")),
        (f"{ANALYSIS}a", ("a", "")),
        ("<|channel|>analysis to=python code<|message|>1<|end|>", ("1", "")),
        ("<|channel|>other<|message|>x", ("", "<|channel|>other<|message|>x")),
        (
            "<|channel|>" + "x" * 400 + "<|message|>",
            ("", "<|channel|>" + "x" * 400 + "<|message|>"),
        ),
        ("Hi.", ("", "Hi.")),
    ],
)
def test_channels_are_told_apart(reply: str, expected: tuple[str, str]) -> None:
    for pieces in ([reply], list(reply)):
        assert told(HARMONY, pieces) == (*expected, [])
    markers = markers_of(HARMONY, HARMONY.texts)
    thoughts, text = expected
    hidden = (markers.shown(markers.coded(thoughts)), markers.shown(markers.coded(text)))
    assert told(HARMONY, list(markers.coded(reply)), markers=markers) == (*hidden, [])


@pytest.mark.parametrize(
    "head",
    [
        "<|channel|>commentary to=functions.f <|constrain|>json<|message|>",
        "<|start|>assistant<|channel|>commentary to=functions.f<|message|>",
        "<|start|>assistant to=functions.f<|channel|>commentary json<|message|>",
        "<|start|>assistant<|channel|>analysis to=functions.f code<|message|>",
    ],
)
def test_a_call_behind_a_thought_is_read(head: str) -> None:
    form = forms()["gpt_oss"]
    more = [*form.openings, *form.markers]
    for tokens in ((), (*HARMONY.texts, "<|call|>")):
        markers = markers_of(HARMONY, tokens, more)
        call = CallReader(form, Functions([tool("f")]), markers, lambda name: "")
        reply = markers.coded(f"{ANALYSIS}functions.f it is<|end|>{head}{{}}<|call|>")
        expected = ("functions.f it is", "", ["f"])
        assert told(HARMONY, list(reply), markers=markers, calls=call) == expected


def test_a_call_in_a_thought_is_a_thought() -> None:
    form = forms()["hermes"]
    call = '<tool_call>{"name": "f"}</tool_call>'
    for reply, begun in (
        (f"\n<think>I could {call}\n</think>\n\n{call}", False),
        (f"I could {call}</think>{call}", True),
    ):
        for pieces in ([reply], list(reply)):
            markers = markers_of(THINK, (), [*form.openings, *form.markers])
            calls = CallReader(form, Functions([tool("f")]), markers, lambda name: "")
            said = told(THINK, pieces, begun=begun, markers=markers, calls=calls)
            assert said == (f"I could {call}", "", ["f"])


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.opening)
@settings(max_examples=25)
@given(data=st.data())
def test_the_same_comes_of_it_however_a_reply_is_cut(
    form: ThoughtForm, data: st.DataObject
) -> None:
    marks = [*form.texts, form.opening, *(mark[: len(mark) // 2] for mark in form.texts)]
    pieces = st.one_of(st.sampled_from([*marks, "\n", " ", "a", "assistant"]), st.text(max_size=3))
    reply = "".join(data.draw(st.lists(pieces, max_size=10)))
    begun, tokens = data.draw(st.booleans()), data.draw(st.sampled_from([(), form.texts]))
    markers = markers_of(form, tokens)
    reply = markers.coded(reply)
    at_once = told(form, [reply], begun=begun, markers=markers)
    cut = sorted(data.draw(st.lists(st.integers(0, len(reply)), max_size=6)))
    parts = [reply[a:b] for a, b in zip([0, *cut], [*cut, len(reply)], strict=True)]
    assert told(form, parts, begun=begun, markers=markers) == at_once
    assert told(form, list(reply), begun=begun, markers=markers) == at_once
    thoughts, text, _ = at_once
    letters = [character for character in thoughts + text if not character.isspace()]
    rest = iter(reply if not tokens else markers.spelled(reply))
    assert tokens or all(letter in rest for letter in letters), "something came out of order"


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.opening)
@pytest.mark.parametrize("part", ["opening", " ", "x", "beginning", "closing"])
def test_long_replies_take_time_in_proportion(form: ThoughtForm, part: str) -> None:
    parts = {
        "opening": form.opening,
        "beginning": form.closing[:-1] or "<",
        "closing": form.closing,
    }
    unit = parts.get(part, part)

    def seconds(size: int) -> float:
        reply = form.opening + unit * (size // len(unit))
        begin = time.process_time()
        told(form, [reply[at : at + 3] for at in range(0, len(reply), 3)])
        return time.process_time() - begin

    seconds(2000)
    assert seconds(60_000) < 2.0


# Templates that show the thoughts of the last reply, and what they are told to begin one.
SHOWING: dict[str, dict[str, Any]] = {
    "Apriel-1.6-15b-Thinker-fixed": {},
    "ByteDance-Seed-OSS": {},
    "GLM-4.6": {},
    "MiniMax-M3": {},
    "NVIDIA-Nemotron-3-Nano-30B-A3B-BF16": {},
    "Qwen-Qwen3-0.6B": {},
    "Qwen3.5-4B": {},
    "Reka-Edge": {"enable_thinking": True},
    "deepseek-ai-DeepSeek-V4-Flash-0731": {"enable_thinking": True},
    "openbmb-MiniCPM5-1B": {"enable_thinking": True},
    "poolside-Laguna-XS-2.1": {"enable_thinking": True},
    "tencent-Hy3": {"reasoning_effort": "high"},
}
OPENINGS = {  # of others
    "google-gemma-4-31B-it-interleaved": "<|channel>",
    "HuggingFaceTB-SmolLM3-3B": "<think>",
    "deepseek-ai-DeepSeek-R1-Distill-Llama-8B": "<think>",
    "deepseek-ai-DeepSeek-V3.1": "<think>",
    "ibm-granite-granite-3.3-2B-Instruct": "<think>",
    "LFM2.5-Instruct": "<think>",
    "Kimi-K2-Thinking": "<think>",
    "Qwen-QwQ-32B": "<think>",
    "meta-llama-Llama-3.2-3B-Instruct": "",
    "microsoft-Phi-3.5-mini-instruct": "",
    "LFM2-8B-A1B": "",
}


@pytest.mark.parametrize("name", SHOWING)
def test_real_templates_write_what_is_told_apart(name: str, shared_data: Path) -> None:
    """What a template makes of a reply, the model says: its thoughts and its answer come back."""
    source = (shared_data / "chat_templates" / f"{name}.jinja").read_text("utf-8")
    tokenizer = tokenizer_for(source + "<think:opensource></think:opensource>")
    template, asked = ChatTemplate(source), {"role": "user", "content": "How?"}
    thoughts = dict.fromkeys(("reasoning_content", "thinking"), "A <thought>.")
    reply = {"role": "assistant", "content": "The answer.", **thoughts}
    values = SHOWING[name]
    prompt = template.render([asked], **values)
    whole = template.render([asked, reply], add_generation_prompt=False, **values)
    if name.startswith("Apriel"):  # which leaves out what the prompt ends with
        whole = prompt + whole[len(os.path.commonprefix([prompt, whole])) :]
    assert whole.startswith(prompt)
    chat_format = ChatFormat(tokenizer, template)
    reader = chat_format.reader(chat_format.encode([asked], variables=values))
    assert reader
    decoder = tokenizer.stream(marked=reader.marked)
    events: list[Any] = []
    for run, control in tokenizer.controls.split(whole[len(prompt) :]):
        for id_ in (*run.encode(), *(() if control is None else (control,))):
            events += reader.push(decoder.push(id_))
    events += reader.finish()
    thought = "".join(event.text for event in events if isinstance(event, Thought))
    text = "".join(event for event in events if isinstance(event, str))
    assert (thought, text.split("\n")[0].removesuffix("[e~[")) == ("A <thought>.", "The answer.")


@pytest.mark.parametrize("name", OPENINGS)
def test_a_template_says_how_its_model_thinks(name: str, shared_data: Path) -> None:
    source = (shared_data / "chat_templates" / f"{name}.jinja").read_text("utf-8")
    form = thought_form(source, controls_of([]))
    assert (form.opening if form else "") == OPENINGS[name]


def test_what_a_template_names_goes_before_what_a_vocabulary_has() -> None:
    controls = controls_of(["<think>", "</think>", "<mm:think>", "</mm:think>"])
    for source, opening in (
        ("'<mm:think>'", "<mm:think>"),
        ("'</think>'", "<think>"),
        ("", "<think>"),
    ):
        form = thought_form(source, controls)
        assert form and form.opening == opening
