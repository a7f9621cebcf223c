"""Calls that a conversation already has, as the chat template of a model wants them."""

from __future__ import annotations

import json
import re
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

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
        PromptError: a message has calls of another shape, or arguments that are no object; or the
            model's template would leave out what is called, or what a function returned.
    """
    for index, message in enumerate(messages):
        _check(message, index, calling)
    if calling.style is None:
        return list(messages)
    suit = _Suit(calling.form, calling.style, controls)
    changed = [suit.message(message, index) for index, message in enumerate(messages)]
    return changed if calling.several else list(_one_at_a_time(changed, calling.style.without))


def _one_at_a_time(
    messages: Sequence[dict[str, Any]], without: str | None
) -> Iterator[dict[str, Any]]:
    """The same conversation for templates that take one call in a message: each has its result.

    Args:
        messages: as the template wants them otherwise.
        without: the content of a message that only calls.
    """
    left = deque(messages)
    while left:
        message = left.popleft()
        calls = message.get("tool_calls") or ()
        if len(calls) < 2:
            yield message
            continue
        results = []
        while left and left[0]["role"] == "tool":
            results.append(left.popleft())
        for call in calls:
            yield {**message, "tool_calls": [call]}
            message = {"role": message["role"], "content": without}  # what it says it says once
            for result in results:
                if result.get("tool_call_id") == call["id"]:
                    results.remove(result)
                    yield result
                    break
        yield from results


class _Call(NamedTuple):
    """A call of a conversation: the id that its client gave, one that suits, and the function."""

    given: str | None
    id: str
    name: str


class _Suit:
    """Goes through one conversation."""

    def __init__(self, form: CallForm | None, style: CallStyle, controls: ControlTokens) -> None:
        """Takes how calls are written, how the template wants them, and the control tokens."""
        self._form, self._style, self._controls = form, style, controls
        self._ids: dict[str, str] = {}  # of the latest call with each id
        self._unanswered: list[_Call] = []  # of the latest message with calls
        self._count = 0

    def message(self, message: dict[str, Any], index: int) -> dict[str, Any]:
        """A message as the template wants it."""
        if message.get("tool_calls"):
            return self._with_calls(message, index)
        if message["role"] == "tool" or "tool_call_id" in message:
            return self._result(message, index)
        return message

    def _with_calls(self, message: dict[str, Any], index: int) -> dict[str, Any]:
        calls = _calls(message, index)
        said = message.get("content") or ""
        self._unanswered.clear()
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
        given = _id(call, "id", index)
        id_ = self._suitable(given or f"call_{self._count}", function["name"])
        self._unanswered.append(_Call(given, id_, function["name"]))
        if given:
            self._ids[given] = id_
        self._count += 1
        return {**call, "id": id_, "function": {**function, "arguments": arguments}}

    def _result(self, message: dict[str, Any], index: int) -> dict[str, Any]:
        """What a function returned, with the id of its call.

        That is the first with its id, or without any, that has no result yet; failing that, the
        latest with its id. A result without an id is that of the first call that has none, of the
        function if that is named.
        """
        given, name = _id(message, "tool_call_id", index), message.get("name")
        for call in self._unanswered:
            if call.given in (given, None) if given else name in (None, call.name):
                self._unanswered.remove(call)
                return {**message, "tool_call_id": call.id}
        if not given:
            return message
        id_ = self._ids.get(given) or self._suitable(given, name if isinstance(name, str) else "")
        return {**message, "tool_call_id": id_}

    def _suitable(self, id_: str, name: str) -> str:
        """An id as the template wants it; the name is empty if it is not known."""
        kind = self._style.ids
        return id_ if kind.suits(id_, name) else kind.derive(id_, name or "unknown", self._count)

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


def _check(message: Mapping[str, Any], index: int, calling: Calling) -> None:
    """Makes sure that calls have their shape, and that the template does not leave them out."""
    calls = _calls(message, index)
    for call in calls if calling.style is None else []:
        _arguments(call["function"], index)
    if calls and calling.style is None:
        raise PromptError(
            f"message {index} calls {shown(calls[0]['function']['name'])}, and the model's chat "
            "template says nothing of calls: leave out tool_calls, and messages of role 'tool'"
        )
    if message["role"] == "tool" and not calling.says_results:
        raise PromptError(
            f"message {index} has role 'tool', and the model's chat template says nothing of what "
            "functions return: leave it out"
        )


def _id(message: Mapping[str, Any], key: str, index: int) -> str | None:
    """An id that a client gave, if it did."""
    id_ = message.get(key)
    if not isinstance(id_, str | None):
        raise PromptError(f"message {index} has {shown(id_)} as {key}; expected text")
    return id_ or None


def _calls(message: Mapping[str, Any], index: int) -> list[dict[str, Any]]:
    """The calls of a message, each a dictionary with one of the function."""
    calls = message.get("tool_calls")
    if not isinstance(calls, list | tuple | None):
        raise PromptError(f"message {index} has {shown(calls)} as tool_calls; {EXPECTED}")
    checked = []
    for call in calls or ():
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
