"""Conversations as templates get them: checked, their text flattened, and disguised."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from itertools import takewhile
from typing import Any

from edgerun.errors import InputError, PromptError
from edgerun.model.chat.template import Message
from edgerun.values import shown

SYSTEM, DEVELOPER = "system", "developer"
ROLES = (SYSTEM, DEVELOPER, "user", "assistant", "tool")
# Values of "type" that templates compare and print; all others are text like any other.
TYPES = ("function", "object", "string", "integer", "number", "boolean", "array", "null")
# What a model itself wrote, in messages of the assistant.
THOUGHT_KEYS = ("reasoning_content", "reasoning", "thinking")
REPLY_KEYS = ("content", *THOUGHT_KEYS)
MAX_DEPTH = 64
BETWEEN = "\n\n"  # what was said in two messages


class OwnText(str):
    """What a model itself wrote, calls with their control tokens at its end.

    Attributes:
        said: the text before calls, which is treated as that of any reply.
        written: calls, in which nothing that a caller gave spells a control token.
    """

    said: str
    written: str

    def __new__(cls, said: str, written: str) -> OwnText:
        text = super().__new__(cls, said + written)
        text.said, text.written = said, written
        return text


def normalised(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """Checks that a conversation has a shape that templates expect, and flattens its text.

    Content in parts, ``[{"type": "text", "text": ...}]``, becomes one text with a line for each
    part. Content may be None, which templates see, or missing where a message calls tools. Other
    keys that are None are left out, as are calls of which there are none.

    Raises:
        PromptError: the conversation has another shape, or holds other things than text.
    """
    if not messages:
        raise PromptError("the conversation is empty: pass at least one message")
    return [_normalised(message, index) for index, message in enumerate(messages)]


def with_thoughts(message: Mapping[str, Any], names: Collection[str]) -> dict[str, Any]:
    """A message whose thoughts, if it has some, are where a template looks for them.

    Args:
        message: with thoughts under one of ``THOUGHT_KEYS``.
        names: that the template reads.
    """
    thoughts = next((message[key] for key in THOUGHT_KEYS if message.get(key)), None)
    key = next((key for key in THOUGHT_KEYS if key in names), None)
    if not thoughts or key is None or any(message.get(each) for each in names):
        return dict(message)
    said = {"content": ""} if key == "thinking" and message.get("tool_calls") else {}
    return {**message, **said, key: thoughts}  # OpenAI's template refuses both beside calls


def with_one_beginning(messages: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """What the system and developers say at the beginning of a conversation, in one message.

    Of several most templates show the first alone. Those of the system alone stay as they are.
    """
    first = list(takewhile(lambda message: message["role"] in (SYSTEM, DEVELOPER), messages))
    if len(first) < 2 or all(message["role"] == SYSTEM for message in first):
        return list(messages)
    said = joined(message.get("content") for message in first)
    return [{**first[0], "content": said}, *messages[len(first) :]]


def joined(texts: Iterable[str | None]) -> str:
    """Texts of several messages as that of one."""
    return BETWEEN.join(text for text in texts if text)


def without_developers(messages: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """A conversation for models that know no developers: what they say, the system says."""
    return [
        {**message, "role": SYSTEM} if message["role"] == DEVELOPER else message
        for message in messages
    ]


def has_calls(messages: Sequence[Mapping[str, Any]]) -> bool:
    """Whether a conversation calls functions, in whatever shape, or has what they returned."""
    return any(
        message["role"] == "tool" or message.get("tool_calls") not in (None, [], ())
        for message in messages
    )


def check_tools(tools: Sequence[Mapping[str, Any]] | None) -> None:
    """Checks that tools are descriptions of functions.

    Raises:
        InputError: one is not.
    """
    for index, tool in enumerate(tools or ()):
        if not isinstance(tool, Mapping):
            raise InputError(f"tool {index} is {shown(tool)}; expected a JSON schema of a function")
        _check_depth(tool, f"tool {index}", 0)


def map_texts(value: Any, change: Callable[[str], str], change_key: Callable[[str], str]) -> Any:
    """Changes every string in JSON-like data, keys included, but no plain ``type``."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, Mapping):
        return {
            change_key(key) if isinstance(key, str) else key: item
            if key == "type" and isinstance(item, str) and item in TYPES
            else map_texts(item, change, change_key)
            for key, item in value.items()
        }
    if isinstance(value, list | tuple):
        return [map_texts(item, change, change_key) for item in value]
    return value


def _normalised(message: Message, index: int) -> dict[str, Any]:
    if not isinstance(message, Mapping):
        raise PromptError(f"message {index} is {shown(message)}; expected role and content")
    role = message.get("role")
    if not isinstance(role, str) or role not in ROLES:
        raise PromptError(
            f"message {index} has role {shown(role)}; expected one of {', '.join(ROLES)}"
        )
    _check_depth(message, f"message {index}", 0)
    content = message.get("content")
    if content is None and not message.get("tool_calls"):
        raise PromptError(f"message {index} has no content; only one with tool_calls needs none")
    for key in THOUGHT_KEYS:
        if not isinstance(message.get(key), str | None):
            raise PromptError(f"message {index} has {shown(message[key])} as {key}; expected text")
    given = {key: value for key, value in message.items() if not _is_missing(key, value)}
    if isinstance(content, list | tuple):
        return {**given, "content": "\n".join(_part_text(part, index) for part in content)}
    if not isinstance(content, str | None):
        raise PromptError(f"message {index} has {shown(content)} as content; expected text")
    return given


def _is_missing(key: str, value: Any) -> bool:
    """Whether a key says nothing, though templates may ask whether it is there."""
    return (value is None and key != "content") or (key == "tool_calls" and value in ([], ()))


def _part_text(part: Any, index: int) -> str:
    kind = part.get("type") if isinstance(part, Mapping) else None
    if kind != "text":
        named = (
            f"a part of type {shown(kind)}" if isinstance(kind, str) else f"the part {shown(part)}"
        )
        raise PromptError(
            f"message {index} has {named}; models here read text only, "
            'as a string or as {"type": "text", "text": ...}'
        )
    text = part.get("text")
    if not isinstance(text, str):
        raise PromptError(f"message {index} has a part of text without text: {shown(part)}")
    return text


def _check_depth(value: Any, name: str, depth: int) -> None:
    if depth > MAX_DEPTH:
        raise PromptError(f"{name} is nested deeper than {MAX_DEPTH} levels")
    items = value.values() if isinstance(value, Mapping) else value
    if isinstance(value, Mapping | list | tuple):
        for item in items:
            _check_depth(item, name, depth + 1)
