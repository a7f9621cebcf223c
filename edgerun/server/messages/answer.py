"""How a message is written: whole, or as the events in which it comes about."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec

from edgerun.errors import InputError
from edgerun.llm.replies.completion import Completion
from edgerun.server.answers import EventForm, named_event, send_events, send_json
from edgerun.server.messages.conversation import TEXT, THINKING, TOOL_USE
from edgerun.server.messages.problems import message_problem
from edgerun.server.problems import problem_with
from edgerun.server.work import SingleWork

if TYPE_CHECKING:
    from starlette.types import Send

    from edgerun.model.chat.tools.call import ToolCall
    from edgerun.server.messages.request import MessageFields
    from edgerun.server.replies import Group, Replies

Event: TypeAlias = dict[str, Any]
Block: TypeAlias = dict[str, Any]
ROOMS = ("context", "memory")  # ends for want of room
EVENTS = EventForm(named_event, message_problem, b"")


@dataclass
class MessageWork(SingleWork):
    """One request for a message.

    Attributes:
        stops: stop texts of the caller.
    """

    fields: MessageFields
    stops: Sequence[str]

    async def stream(self, group: Group, send: Send) -> None:
        await send_events(self._events(group), send, EVENTS)

    def whole(self, completion: Completion) -> dict[str, Any]:
        message = self._message(content_of(completion, is_open=self._is_open))
        return {**message, **_ended(completion, self.stops), "usage": _usage(completion)}

    @property
    def _is_open(self) -> bool:
        """Whether the caller wants to know what the model thinks."""
        thinking = self.fields.thinking
        return thinking is None or thinking.display != "omitted"

    def _message(self, content: list[Block]) -> dict[str, Any]:
        head = {"id": f"{self.head.prefix}_{self.head.id}", "type": "message"}
        return {**head, "role": "assistant", "model": self.head.model, "content": content}

    async def _events(self, group: Group) -> AsyncIterator[Event]:
        """What becomes of the only reply of a group, from its first piece on."""
        (completion,) = group.completions
        writer, has_begun = BlockWriter(is_open=self._is_open), False
        async for came in group.pieces():
            if not has_begun:
                has_begun = True
                usage = _usage(completion, came.tokens)
                open_end = {"stop_reason": None, "stop_sequence": None, "usage": usage}
                yield {"type": "message_start", "message": {**self._message([]), **open_end}}
            texts = {THINKING: came.part.thinking, TEXT: came.part.text}
            for event in writer.said(texts, answers_first=completion.answers_first):
                yield event
        for event in writer.rest(completion.tool_calls):
            yield event
        delta = _ended(completion, self.stops)
        yield {"type": "message_delta", "delta": delta, "usage": _usage(completion)}
        yield {"type": "message_stop"}


@dataclass
class CountWork:
    """One request for the length of a prompt.

    Attributes:
        model: the model that it names.
        count: encodes the conversation.
        sent: the fields of the arguments that were sent, for errors.
    """

    model: str | None
    count: Callable[[], int]
    sent: Mapping[str, str]

    def tokens(self) -> int:
        return 0

    async def answer(self, replies: Replies, send: Send) -> None:
        try:
            tokens = await replies.counted(self.count)
        except InputError as error:
            raise problem_with(error, self.sent) from error
        await send_json(200, {"input_tokens": tokens}, send)


def content_of(completion: Completion, *, is_open: bool = True) -> list[Block]:
    """The blocks of a whole reply: thoughts, text and calls; one of nothing is an empty text."""
    texts = {THINKING: completion.thinking, TEXT: completion.text}
    kinds = [kind for kind in _order(answers_first=completion.answers_first) if texts[kind]]
    if not kinds and not completion.tool_calls:
        kinds = [TEXT]
    blocks = [_block(kind, texts[kind] if is_open or kind == TEXT else "") for kind in kinds]
    calls = [_call(each, msgspec.Raw(each.arguments.encode())) for each in completion.tool_calls]
    return [*blocks, *calls]


class BlockWriter:
    """Writes the blocks of a reply as events.

    A block ends where one of another kind begins: a model that thinks again has further ones.
    """

    def __init__(self, *, is_open: bool = True) -> None:
        """Begins; thoughts are told as blocks without text where they are not open."""
        self._is_open = is_open
        self._index = -1
        self._kind: str | None = None  # of the block that has not ended

    def said(self, texts: Mapping[str, str], *, answers_first: bool) -> Iterator[Event]:
        """What came at a time, by kind: of two what goes on with the block that has not ended."""
        if self._kind is not None:
            answers_first = self._kind == TEXT
        for kind in _order(answers_first=answers_first):
            if not texts[kind]:
                continue
            if kind != self._kind:
                yield from self._begun(kind)
            if self._is_open or kind == TEXT:
                yield self._delta(f"{kind}_delta", kind, texts[kind])

    def rest(self, calls: Sequence[ToolCall]) -> Iterator[Event]:
        """The end of the last block, and calls, which come whole."""
        if self._index < 0 and not calls:
            yield from self._begun(TEXT)
        yield from self._ended()
        for call in calls:
            yield self._start(_call(call, {}))
            yield self._delta("input_json_delta", "partial_json", call.arguments)
            yield self._stop()

    def _begun(self, kind: str) -> Iterator[Event]:
        yield from self._ended()
        self._kind = kind
        yield self._start(_block(kind, ""))

    def _ended(self) -> Iterator[Event]:
        if self._kind == THINKING:
            yield self._delta("signature_delta", "signature", "")
        if self._kind is not None:
            yield self._stop()
        self._kind = None

    def _start(self, block: Block) -> Event:
        self._index += 1
        return {"type": "content_block_start", "index": self._index, "content_block": block}

    def _delta(self, kind: str, name: str, text: str) -> Event:
        delta = {"type": kind, name: text}
        return {"type": "content_block_delta", "index": self._index, "delta": delta}

    def _stop(self) -> Event:
        return {"type": "content_block_stop", "index": self._index}


def _order(*, answers_first: bool) -> tuple[str, str]:
    return (TEXT, THINKING) if answers_first else (THINKING, TEXT)


def _block(kind: str, text: str) -> Block:
    signed = {"signature": ""} if kind == THINKING else {}
    return {"type": kind, kind: text, **signed}


def _call(call: ToolCall, arguments: Any) -> Block:
    return {"type": TOOL_USE, "id": call.id, "name": call.name, "input": arguments}


def _ended(completion: Completion, stops: Sequence[str]) -> dict[str, str | None]:
    """Why a reply ended; a model without a chat template has stop texts that no caller gave."""
    reason, stop = "end_turn", None
    if completion.finish_reason == "length":
        reason = "max_tokens"
    elif completion.finish_reason in ROOMS:
        reason = "model_context_window_exceeded"
    elif completion.tool_calls:
        reason = "tool_use"
    elif completion.stop_text in stops:
        reason, stop = "stop_sequence", completion.stop_text
    return {"stop_reason": reason, "stop_sequence": stop}


def _usage(completion: Completion, generated: int | None = None) -> dict[str, Any]:
    """Tokens of the prompt, and of the reply, as far as it came."""
    cached = completion.stats.reused_tokens
    usage: dict[str, Any] = {
        "input_tokens": completion.prompt_tokens - cached,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": cached,
        "output_tokens": len(completion.ids) if generated is None else generated,
    }
    if generated is None:
        usage["output_tokens_details"] = {"thinking_tokens": completion.thinking_tokens}
    return usage
