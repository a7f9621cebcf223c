"""Calls that a conversation already has, as the chat template of a model wants them."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from edgerun.errors import PromptError
from edgerun.model.chat.conversation import OwnText, map_texts
from edgerun.model.chat.tools.form import CallForm, Written
from edgerun.model.chat.tools.functions import NAME
from edgerun.model.chat.tools.recognition import Calling, CallStyle
from edgerun.model.chat.tools.values import (
    MAX_DEPTH,
    UnreadableError,
    depth_of,
    read_object,
    write_json,
)
from edgerun.model.text.controls import ControlTokens
from edgerun.values import shown

PRIVATE = range(0xE000, 0xF900)
EXPECTED = (
    'expected a list such as [{"id": "...", "type": "function", "function": '
    '{"name": "...", "arguments": "{...}"}}]'
)


def suited(
    messages: Sequence[dict[str, Any]], calling: Calling, controls: ControlTokens
) -> list[dict[str, Any]]:
    """Writes calls, and ids of results, as a chat template wants them.

    Args:
        messages: a conversation whose texts are checked.
        calling: how the model calls functions.
        controls: of the tokenizer.

    Raises:
        PromptError: a message has calls of another shape, or arguments that are no object.
    """
    if calling.style is None:
        return list(messages)
    suit = _Suit(calling.form, calling.style, controls)
    return [suit.message(message, index) for index, message in enumerate(messages)]


class _Suit:
    """Goes through one conversation."""

    def __init__(self, form: CallForm | None, style: CallStyle, controls: ControlTokens) -> None:
        """Takes how calls are written, how the template wants them, and the control tokens."""
        self._form, self._style, self._controls = form, style, controls
        self._ids: dict[str, str] = {}
        self._count = 0

    def message(self, message: dict[str, Any], index: int) -> dict[str, Any]:
        """A message as the template wants it."""
        if message.get("tool_calls"):
            return self._with_calls(message, index)
        if isinstance(message.get("tool_call_id"), str):
            name = message.get("name")
            id_ = self._id(message["tool_call_id"], name if isinstance(name, str) else "unknown")
            return {**message, "tool_call_id": id_}
        return message

    def _with_calls(self, message: dict[str, Any], index: int) -> dict[str, Any]:
        calls = _calls(message, index)
        said = message.get("content") or ""
        if self._style.is_written:
            written = [_written(call["function"], index) for call in calls]
            others = {name: value for name, value in message.items() if name != "tool_calls"}
            return {**others, "content": OwnText(said, self._spelled(written, index))}
        suited = [self._call(call, index) for call in calls]
        return {**message, "content": said or self._style.without, "tool_calls": suited}

    def _call(self, call: dict[str, Any], index: int) -> dict[str, Any]:
        function = call["function"]
        arguments: Any = _arguments(function, index)
        if self._style.as_text:
            arguments = _text(arguments, index)
        suited = {**call, "function": {**function, "arguments": arguments}}
        if isinstance(call.get("id"), str):
            suited["id"] = self._id(call["id"], function["name"])
        self._count += 1
        return suited

    def _id(self, id_: str, name: str) -> str:
        if self._style.ids.pattern.fullmatch(id_):
            return id_
        if id_ not in self._ids:
            self._ids[id_] = self._style.ids.derive(id_, name, self._count)
        return self._ids[id_]

    def _spelled(self, calls: Sequence[Written], index: int) -> str:
        """Calls as the model writes them; strings that spell a control token have escapes."""
        taken = _text([call.arguments for call in calls], index)
        mark = next((each for each in map(chr, PRIVATE) if each not in taken), "")
        if not mark:
            raise PromptError(f"message {index} uses too many private-use characters; remove some")

        def hide(text: str) -> str:
            if not self._controls.names_in(text):
                return text
            return self._controls.ends.sub(lambda match: mark + match[0], text)

        assert self._form is not None
        hidden = [Written(call.name, map_texts(call.arguments, hide, hide)) for call in calls]
        text = self._form.write(hidden)
        return re.sub(f"{mark}(.)", lambda match: _escape(match[1]), text, flags=re.DOTALL)


def _written(function: Mapping[str, Any], index: int) -> Written:
    if not NAME.fullmatch(function["name"]):
        raise PromptError(
            f"message {index} calls {shown(function['name'])}; expected the name of a function"
        )
    return Written(function["name"], _arguments(function, index))


def _escape(character: str) -> str:
    code = ord(character)
    return f"\\u{code:04x}" if code < 0x10000 else json.dumps(character)[1:-1]


def _text(value: Any, index: int) -> str:
    try:
        return write_json(value)
    except UnreadableError as error:
        raise PromptError(f"message {index} has arguments that are not JSON: {error}") from error


def _calls(message: Mapping[str, Any], index: int) -> list[dict[str, Any]]:
    """The calls of a message, each a dictionary with one of the function."""
    calls = message["tool_calls"]
    if not isinstance(calls, list | tuple):
        raise PromptError(f"message {index} has {shown(calls)} as tool_calls; {EXPECTED}")
    checked = []
    for call in calls:
        function = call.get("function") if isinstance(call, Mapping) else None
        if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
            raise PromptError(f"message {index} has {shown(call)} among its tool_calls; {EXPECTED}")
        checked.append({"type": "function", **call, "function": dict(function)})
    return checked


def _arguments(function: Mapping[str, Any], index: int) -> Mapping[str, Any]:
    arguments = function.get("arguments", {})
    if isinstance(arguments, Mapping):
        return arguments
    try:
        read = read_object(arguments)
    except (UnreadableError, AttributeError) as error:
        raise PromptError(
            f"message {index} calls {function['name']!r} with {shown(arguments)} as arguments; "
            "expected a JSON object or its text"
        ) from error
    if depth_of(read) > MAX_DEPTH:
        raise PromptError(f"message {index} has arguments with more than {MAX_DEPTH} levels")
    return read
