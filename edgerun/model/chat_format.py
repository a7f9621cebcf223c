"""Conversations to ids: checks messages, renders the template, keeps content apart from control.

Content could be encoded apart from the template in two ways: replace it by placeholders and put
it back after rendering, which breaks with every template that trims, splits or escapes content; or
mark it such that it survives all that. This module does the second (see
``controls.ControlTokens.protect``): one marker character, chosen so that it occurs nowhere in the
conversation, stands in the content wherever a control token could begin or go on, and is removed
when the rendered text is encoded.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from edgerun.errors import InputError, PromptError
from edgerun.model.chat_template import ChatTemplate, Message
from edgerun.model.tokenizer import Tokenizer
from edgerun.values import shown

ROLES = ("system", "developer", "user", "assistant", "tool")
TYPES = ("text", "function", "object", "string", "integer", "number", "boolean", "array", "null")
MAX_DEPTH = 64
# Noncharacters first: no text should hold them. Then private use.
MARKERS = (*range(0xFDD0, 0xFDF0), *range(0xE000, 0xF900))


@dataclass(frozen=True, slots=True)
class RenderedChat:
    """A conversation as text and ids.

    Attributes:
        text: the rendered template, markers included.
        marker: the marker character.
        ids: token ids.
    """

    text: str
    marker: str
    ids: tuple[int, ...]


class ChatFormat:
    """A tokenizer and a template that belong together.

    Attributes:
        template: the template.
    """

    def __init__(self, tokenizer: Tokenizer, template: ChatTemplate) -> None:
        """Takes both from one bundle."""
        self._tokenizer = tokenizer
        self.template = template

    def encode(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        before: RenderedChat | None = None,
        **variables: Any,
    ) -> RenderedChat:
        """Renders and encodes a conversation that ends before a reply.

        Args:
            messages: the conversation, at least one message.
            tools: functions the model may call, as JSON schemas.
            before: an earlier result, see ``extended``; if this conversation goes on from there,
                its ids are kept as they are, whatever the text would encode to.
            variables: further names for the template.

        Raises:
            PromptError: there is no message, or one has an unusable role or content.
            InputError: the template is broken or refuses the conversation.
        """
        check_messages(messages)
        marker = _free_marker([*messages, *(tools or ()), self.template.source])
        text = self.template.render(
            [self._protected(message, marker) for message in messages],
            tools=[self._protected(tool, marker) for tool in tools] if tools else None,
            **variables,
        )
        if before and before.marker == marker and text.startswith(before.text):
            rest = text[len(before.text) :]
            if self._tokenizer.starts_with_control(rest):
                ids = self._tokenizer.encode_template(rest, marker, first=False)
                return RenderedChat(text, marker, (*before.ids, *ids))
        return RenderedChat(text, marker, tuple(self._tokenizer.encode_template(text, marker)))

    def extended(self, chat: RenderedChat, reply: str, reply_ids: Sequence[int]) -> RenderedChat:
        """Returns ``chat`` followed by a reply and the ids that the model generated for it."""
        protected = self._tokenizer.protect(reply, chat.marker, own_reply=True)
        return RenderedChat(chat.text + protected, chat.marker, (*chat.ids, *reply_ids))

    def _protected(self, message: Message, marker: str) -> dict[str, Any]:
        own_reply = message.get("role") == "assistant"

        def protect(text: str) -> str:
            return self._tokenizer.protect(text, marker, own_reply=own_reply)

        return {
            key: value if key in ("role", "type") else _map_texts(value, protect)
            for key, value in message.items()
        }


def check_messages(messages: Sequence[Message]) -> None:
    """Checks that a conversation has a shape that templates expect.

    Roles and types come from fixed lists because templates print them inside control tokens.

    Raises:
        PromptError: it has not.
    """
    if not messages:
        raise PromptError("the conversation is empty: pass at least one message")
    for index, message in enumerate(messages):
        if not isinstance(message, Mapping):
            raise PromptError(f"message {index} is {shown(message)}; expected role and content")
        role = message.get("role")
        if not isinstance(role, str) or role not in ROLES:
            raise PromptError(
                f"message {index} has role {shown(role)}; expected one of {', '.join(ROLES)}"
            )
        if not isinstance(message.get("content"), str | list | None):
            raise PromptError(f"message {index} has no text as content")
        _check_types(message, index, 0)


def _check_types(value: Any, index: int, depth: int) -> None:
    if depth > MAX_DEPTH:
        raise PromptError(f"message {index} is nested deeper than {MAX_DEPTH} levels")
    if isinstance(value, Mapping):
        kind = value.get("type")
        if isinstance(kind, str) and kind not in TYPES:
            raise PromptError(f"message {index} has a part of type {kind!r:.80}; expected text")
        for item in value.values():
            _check_types(item, index, depth + 1)
    elif isinstance(value, list | tuple):
        for item in value:
            _check_types(item, index, depth + 1)


def _map_texts(value: Any, change: Callable[[str], str]) -> Any:
    if isinstance(value, str):
        return change(value)
    if isinstance(value, Mapping):
        return {
            key: item if key == "type" else _map_texts(item, change) for key, item in value.items()
        }
    if isinstance(value, list | tuple):
        return [_map_texts(item, change) for item in value]
    return value


def _free_marker(content: Sequence[Any]) -> str:
    try:
        text = json.dumps(content, ensure_ascii=False, default=str)
        text.encode()
    except UnicodeEncodeError as error:
        raise PromptError(
            "a message contains a surrogate code point, which is not a character: "
            "pass text that can be encoded as UTF-8"
        ) from error
    except (ValueError, RecursionError) as error:
        raise InputError(f"the messages cannot be written as JSON: {error}") from error
    taken = set(re.findall("[\ufdd0-\ufdef\ue000-\uf8ff]", text))
    for code in MARKERS:
        if chr(code) not in taken:
            return chr(code)
    raise PromptError("the conversation uses every private-use character; remove some")
