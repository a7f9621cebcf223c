"""Finds out how a model calls functions: its chat template is asked, not a list of models.

A template renders a conversation in which a function is called. The form that reads the call back
out of what was rendered is the model's, so that each form is proven for the very template with
which it is used. What a template wants calls to be in a conversation differs, too: arguments as
objects or as text, content that is empty or missing, ids of some kind. The first combination counts
with which a call is read back.

Some templates list functions, and leave it to their callers how calls are written. Then the form
counts whose opening the template mentions, or the tokenizer has as a token.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import product
from typing import Any

from edgerun.discovery import entries
from edgerun.errors import InputError
from edgerun.model.chat.template import QUESTION, ChatTemplate, finished
from edgerun.model.chat.tools.call import ANY, KINDS, IdKind, ToolCall
from edgerun.model.chat.tools.form import CallForm
from edgerun.model.chat.tools.functions import Functions
from edgerun.model.chat.tools.markers import Markers
from edgerun.model.chat.tools.reader import CallReader
from edgerun.model.chat.tools.values import read_json, write_json
from edgerun.model.text.tokenizer import Tokenizer

ASKED = {"role": "user", "content": QUESTION}
MOST = 160  # characters of what a template writes, in an error
ROOMS, ENTRY = ("edgerun.model.chat.calls", "edgerun.model.chat.calls.objects"), "FORM"
NAME, REPLY = "look_up_probe", "A reply that calls nothing."
RESULT = "What a function returned."
PLAIN = {"role": "assistant", "content": REPLY}
ARGUMENTS: Mapping[str, Any] = {"label": "42", "count": 7, "place": 'a "b" <c>, é'}
TOOL = {
    "type": "function",
    "function": {
        "name": NAME,
        "description": "Looks something up.",
        "parameters": {
            "type": "object",
            "properties": {
                "label": {"type": "string", "description": "What."},
                "count": {"type": "integer", "description": "How many."},
                "place": {"type": "string", "description": "Where."},
            },
            "required": ["label", "count", "place"],
        },
    },
}


@dataclass(frozen=True)
class CallStyle:
    """What a template wants calls in a conversation to look like.

    Attributes:
        as_text: arguments are the text of their JSON, and not an object.
        without: the content of a message that only calls: nothing, or an empty text.
        ids: what ids look like.
        is_written: the template says nothing of calls, so that they are part of the content.
        several: a message may have more than one.
    """

    as_text: bool = False
    without: str | None = ""
    ids: IdKind = ANY
    is_written: bool = False
    several: bool = True


@dataclass(frozen=True)
class Calling:
    """How a model calls functions.

    Attributes:
        name: of the form in which it writes calls; empty if that is not known.
        form: how it writes calls; None if that is not known.
        style: how its template wants them; None if it says nothing of calls.
        markers: control tokens that take part.
        refusal: why no tools can be given to it; empty if they can.
        says_results: its template does not leave out what functions returned.
    """

    name: str
    form: CallForm | None
    style: CallStyle | None
    markers: Markers
    refusal: str
    says_results: bool = True

    @property
    def several(self) -> bool:
        """Whether a conversation can go on in which a message has more calls than one."""
        return self.style is None or self.style.several

    def check(self) -> None:
        """Makes sure that tools can be given to the model.

        Raises:
            InputError: they cannot.
        """
        if self.form is None or self.refusal:
            raise InputError(self.refusal)

    def reader(self, functions: Functions) -> CallReader:
        """Reads the calls of a reply to which functions were given.

        Raises:
            InputError: tools cannot be given to the model.
        """
        self.check()
        assert self.form is not None and self.style is not None
        return CallReader(self.form, functions, self.markers, self.style.ids.make)


@cache
def forms() -> dict[str, CallForm]:
    """The forms in which models write calls, by name."""
    return {name: form for room in ROOMS for name, form in entries(room, ENTRY).items()}


def recognise(
    tokenizer: Tokenizer, template: ChatTemplate, thoughts: Sequence[str] = ()
) -> Calling:
    """Finds out how a model calls functions.

    Args:
        tokenizer: of the model.
        template: the same.
        thoughts: what marks its thoughts, which are read out of the same replies.

    Raises:
        UnfinishedError: a limit ended the template before it had said all.
    """
    styles = [
        CallStyle(as_text=as_text, without=without, ids=ids)
        for ids, as_text, without in product(KINDS, (False, True), ("", None))
    ]
    replied = [PLAIN, *map(_calling, styles)]
    texts = template.render_many(
        [
            {"messages": [ASKED], "tools": [TOOL]},
            {"messages": [ASKED, PLAIN, {"role": "tool", "content": RESULT}], "tools": None},
            *(
                {"messages": [ASKED, reply], "tools": [TOOL], "add_generation_prompt": False}
                for reply in replied
            ),
        ]
    )
    listing, result, plain, *rendered = map(finished, texts)
    replies = {
        style: _without_thought(_reply(plain, text), thoughts)
        for style, text in zip(styles, rendered, strict=True)
        if isinstance(text, str) and NAME in _reply(plain, text)
    }
    refusal = _refusal(listing)
    for (style, reply), (name, form) in product(replies.items(), forms().items()):
        markers = _markers(tokenizer, form, thoughts)
        if _reads(form, markers, reply):
            style = replace(style, several=_says_both(template, style, plain, reply))
            return Calling(name, form, style, markers, refusal)
    calling = _unread(tokenizer, replies, listing, refusal, thoughts)
    # A template that refuses the conversation says so itself.
    omits_results = not replies and isinstance(result, str) and RESULT not in result
    return replace(calling, says_results=not omits_results)


def _unread(
    tokenizer: Tokenizer,
    replies: Mapping[CallStyle, str],
    listing: str | InputError,
    refusal: str,
    thoughts: Sequence[str],
) -> Calling:
    """What is known where no form reads what the template writes of calls, if that is anything."""
    style, reply = next(iter(replies.items()), (None, ""))
    name = "" if reply or refusal else _mentioned(tokenizer, str(listing))
    if name:
        written, form = CallStyle(is_written=True), forms()[name]
        return Calling(name, form, written, _markers(tokenizer, form, thoughts), "")
    names = ", ".join(forms())
    refusal = refusal or (
        f"the model's chat template writes calls as {reply.strip()[:MOST]!r}, which is none of "
        f"the forms that can be read ({names}): leave tools out"
        if reply
        else "the model's chat template lists tools and does not say how they are called; expected "
        f"one of the forms that can be read ({names}): leave tools out"
    )
    return Calling("", None, style, Markers(tokenizer.controls, ()), refusal)


def _refusal(listing: str | InputError) -> str:
    """Why a template takes no tools; nothing if it does."""
    if isinstance(listing, InputError):
        return f"the model's chat template takes no tools: {listing}"
    if NAME in listing:
        return ""
    return "the model's chat template says nothing of tools, so that it calls none: leave tools out"


def _mentioned(tokenizer: Tokenizer, listing: str) -> str:
    """The form of which a template, or the tokenizer, names most; empty if no call could begin.

    One without escapes does not do: an argument could spell a control token.
    """

    def share(name: str) -> tuple[float, int]:
        form = forms()[name]
        parts = (*form.openings, *form.markers)
        named = [part in listing or part in tokenizer.controls.names for part in parts]
        count = sum(named) if any(named[: len(form.openings)]) else 0
        return count / len(parts), count

    best = max(forms(), key=share)
    return best if any(share(best)) and forms()[best].has_escapes else ""


def _markers(tokenizer: Tokenizer, form: CallForm, thoughts: Sequence[str]) -> Markers:
    texts = (*form.openings, *form.markers, *thoughts)
    return Markers(tokenizer.controls, texts, tokenizer.hidden_ids)


def _reads(form: CallForm, markers: Markers, reply: str) -> bool:
    """Whether a form reads the call, and nothing else, out of a reply."""
    reader = CallReader(form, Functions([TOOL]), markers, lambda name: "")
    events = [*reader.push(markers.coded(reply)), *reader.finish()]
    calls = [event for event in events if isinstance(event, ToolCall)]
    text = "".join(event for event in events if isinstance(event, str))
    if text.strip() or [call.name for call in calls] != [NAME]:
        return False
    return bool(read_json(calls[0].arguments) == ARGUMENTS)


def _says_both(
    template: ChatTemplate, style: CallStyle, plain: str | InputError, reply: str
) -> bool:
    """Whether a template says more calls than one; some refuse them, or would leave them out."""
    messages = [ASKED, _calling(style, 2)]
    context = {"messages": messages, "tools": [TOOL], "add_generation_prompt": False}
    text = finished(next(template.render_many([context])))
    return isinstance(text, str) and _reply(plain, text).count(NAME) > reply.count(NAME)


def _calling(style: CallStyle, count: int = 1) -> dict[str, Any]:
    """A message that calls the function, once or more often."""
    arguments = write_json(ARGUMENTS) if style.as_text else ARGUMENTS
    call = {"name": NAME, "arguments": arguments}
    calls = [
        {"id": style.ids.make(NAME), "type": "function", "function": call} for _ in range(count)
    ]
    return {"role": "assistant", "content": style.without, "tool_calls": calls}


def _reply(plain: str | InputError, text: str) -> str:
    """What a template made of a message, as it shows beside another one in its place."""
    if isinstance(plain, InputError):
        return text.rpartition(QUESTION)[2]
    head, _, tail = plain.rpartition(REPLY)
    start = len(os.path.commonprefix([head, text]))
    opened = text.rfind("<", 0, start)
    if opened > text.rfind(">", 0, start):  # two tags that begin alike
        start = opened
    return text[start:].removesuffix(_common_end(tail, text[start:]))


def _common_end(first: str, second: str) -> str:
    """What both texts end with, of tags whole ones."""
    size = len(os.path.commonprefix([first[::-1], second[::-1]]))
    end = first[len(first) - size :]
    inside, sign, behind = end.partition(">")
    return behind if sign and "<" not in inside else end


def _without_thought(reply: str, thoughts: Sequence[str]) -> str:
    """What is behind a thought at the beginning of a reply, which templates may leave empty."""
    opening, closing = (*thoughts, "", "")[:2]
    if not opening or not reply.lstrip().startswith(opening):
        return reply
    return reply.partition(closing)[2] if closing in reply else reply
