"""How a response is written: whole, or as the events in which it comes about."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from edgerun.llm.completion import Completion, TextStream
from edgerun.server.answers import NAMED_EVENTS, send_events, send_json
from edgerun.server.work import LENGTHS, Head

if TYPE_CHECKING:
    from starlette.types import Send

    from edgerun.model.chat.tools.call import ToolCall
    from edgerun.server.replies import Group, Replies
    from edgerun.server.responses.request import ResponseFields

Event: TypeAlias = dict[str, Any]
Item: TypeAlias = dict[str, Any]
IN_PROGRESS, COMPLETED, INCOMPLETE = "in_progress", "completed", "incomplete"
REASONING, MESSAGE = "reasoning", "message"
NAMES = {REASONING: "reasoning_text", MESSAGE: "output_text"}  # of their parts


@dataclass
class ResponseWork:
    """One request.

    Attributes:
        fields: what was asked for.
        make: encodes the conversation.
        head: what all objects share.
    """

    fields: ResponseFields
    make: Callable[[], list[TextStream]]
    head: Head
    _completion: Completion | None = None

    @property
    def model(self) -> str | None:
        return self.fields.model

    def tokens(self) -> int:
        return len(self._completion.ids) if self._completion else 0

    async def answer(self, replies: Replies, send: Send) -> None:
        async with replies.open(self.make, 1) as group:
            (completion,) = group.completions
            self._completion = completion
            if self.fields.stream:
                writer = _Writer(self._object)
                await send_events(writer.events(group), send, NAMED_EVENTS)
                return
            async for _ in group.pieces():
                pass
            output = output_of(completion)
            await send_json(200, self._object(_status(completion), output, completion), send)

    def _object(
        self, status: str, output: list[Item], completion: Completion | None = None
    ) -> dict[str, Any]:
        """The response, as far as it came."""
        head, fields = self.head.of("response"), self.fields
        ended = completion if status != IN_PROGRESS else None
        form = fields.text.format
        return {
            "id": head["id"],
            "object": head["object"],
            "created_at": head["created"],
            "model": head["model"],
            "status": status,
            "error": None,
            "incomplete_details": {"reason": _reason(ended)} if status == INCOMPLETE else None,
            "instructions": fields.instructions,
            "max_output_tokens": fields.max_output_tokens,
            "metadata": fields.metadata,
            "output": output,
            "parallel_tool_calls": fields.parallel_tool_calls,
            "previous_response_id": None,
            "reasoning": {"effort": fields.reasoning.effort, "summary": fields.reasoning.summary},
            "store": False,
            "text": {"format": {"type": form.type if form else "text"}},
            "tool_choice": fields.tool_choice,
            "tools": fields.tools or [],
            "truncation": fields.truncation,
            "usage": _usage(ended) if ended else None,
        }


def output_of(completion: Completion) -> list[Item]:
    """The items of a whole reply; one of nothing is an empty text."""
    status, items = _status(completion), list[Item]()
    if completion.thinking:
        items.append(_item(REASONING, completion.thinking, status))
    if completion.text or not (completion.thinking or completion.tool_calls):
        items.append(_item(MESSAGE, completion.text, status))
    return [*items, *map(_call_item, completion.tool_calls)]


class _Writer:
    """Writes one response as events."""

    def __init__(self, response: Callable[..., dict[str, Any]]) -> None:
        self._response = response
        self._number = 0
        self._done: list[Item] = []
        self._item: Item | None = None  # under way
        self._text = ""  # of it

    async def events(self, group: Group) -> AsyncIterator[Event]:
        """What becomes of the only reply of a group."""
        (completion,) = group.completions
        for kind in ("created", IN_PROGRESS):
            yield self._event(f"response.{kind}", response=self._response(IN_PROGRESS, []))
        async for came in group.pieces():
            for kind, text in ((REASONING, came.part.thinking), (MESSAGE, came.part.text)):
                if text:
                    for event in self._said(kind, text):
                        yield event
        for event in self._rest(completion):
            yield event

    def _said(self, kind: str, text: str) -> Iterator[Event]:
        """More thoughts, or more text."""
        if self._item is None or self._item["type"] != kind:
            yield from self._ended(COMPLETED)
            yield from self._begun(kind)
        self._text += text
        yield self._placed(f"response.{NAMES[kind]}.delta", delta=text, **_unlikely(kind))

    def _rest(self, completion: Completion) -> Iterator[Event]:
        """The end of what is under way, calls, and the response."""
        status = _status(completion)
        if not (self._item or completion.tool_calls):
            yield from self._begun(MESSAGE)
        yield from self._ended(status)
        for call in completion.tool_calls:
            item = _call_item(call)
            place = {"item_id": item["id"], "output_index": len(self._done)}
            begun = {**item, "arguments": "", "status": IN_PROGRESS}
            yield self._indexed("added", begun)
            kind, arguments = "response.function_call_arguments", item["arguments"]
            yield self._event(f"{kind}.delta", **place, delta=arguments)
            yield self._event(f"{kind}.done", **place, name=item["name"], arguments=arguments)
            yield self._indexed("done", item)
            self._done.append(item)
        whole = self._response(status, self._done, completion)
        yield self._event(f"response.{status}", response=whole)

    def _begun(self, kind: str) -> Iterator[Event]:
        self._item, self._text = _item(kind, None, IN_PROGRESS), ""
        yield self._indexed("added", self._item)
        yield self._placed("response.content_part.added", part=_part(kind, ""))

    def _ended(self, status: str) -> Iterator[Event]:
        """The end of the item under way, if there is one."""
        if self._item is None:
            return
        kind, text = self._item["type"], self._text
        yield self._placed(f"response.{NAMES[kind]}.done", text=text, **_unlikely(kind))
        yield self._placed("response.content_part.done", part=_part(kind, text))
        whole = {**self._item, "content": [_part(kind, text)], "status": status}
        yield self._indexed("done", whole)
        self._done.append(whole)
        self._item = None

    def _indexed(self, what: str, item: Item) -> Event:
        return self._event(f"response.output_item.{what}", output_index=len(self._done), item=item)

    def _placed(self, kind: str, **fields: Any) -> Event:
        assert self._item is not None
        place = {"item_id": self._item["id"], "output_index": len(self._done), "content_index": 0}
        return self._event(kind, **place, **fields)

    def _event(self, kind: str, **fields: Any) -> Event:
        self._number += 1
        return {"type": kind, "sequence_number": self._number - 1, **fields}


def _item(kind: str, text: str | None, status: str) -> Item:
    """Thoughts or a message; the text is None where there is none yet."""
    content = [] if text is None else [_part(kind, text)]
    own: dict[str, Any] = {"summary": []} if kind == REASONING else {"role": "assistant"}
    prefix = "rs" if kind == REASONING else "msg"
    item = {"type": kind, "id": f"{prefix}_{uuid.uuid4().hex}", **own}
    return {**item, "content": content, "status": status}


def _part(kind: str, text: str) -> dict[str, Any]:
    more: dict[str, Any] = {} if kind == REASONING else {"annotations": []}
    return {"type": NAMES[kind], "text": text, **more, **_unlikely(kind)}


def _unlikely(kind: str) -> dict[str, Any]:
    """Log-probabilities of a text, of which none are told here; thoughts have no place for them."""
    return {} if kind == REASONING else {"logprobs": []}


def _call_item(call: ToolCall) -> Item:
    return {
        "type": "function_call",
        "id": f"fc_{uuid.uuid4().hex}",
        "call_id": call.id,
        "name": call.name,
        "arguments": call.arguments,
        "status": COMPLETED,
    }


def _status(completion: Completion) -> str:
    return INCOMPLETE if completion.finish_reason in LENGTHS else COMPLETED


def _reason(completion: Completion | None) -> str:
    """Why a response is not whole."""
    reason = completion.finish_reason if completion else ""
    return "max_output_tokens" if reason == "length" else reason


def _usage(completion: Completion) -> dict[str, Any]:
    prompt, generated = completion.prompt_tokens, len(completion.ids)
    return {
        "input_tokens": prompt,
        "input_tokens_details": {"cached_tokens": completion.stats.reused_tokens},
        "output_tokens": generated,
        "output_tokens_details": {"reasoning_tokens": completion.thinking_tokens},
        "total_tokens": prompt + generated,
    }
