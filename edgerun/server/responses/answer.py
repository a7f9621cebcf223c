"""How a response is written: whole, or as the events in which it comes about."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

from edgerun.llm.replies.completion import Completion
from edgerun.server.answers import EventForm, named_event, send_events
from edgerun.server.responses.functions import Functions
from edgerun.server.work import LENGTHS, SingleWork

if TYPE_CHECKING:
    from starlette.types import Send

    from edgerun.model.chat.tools.call import ToolCall
    from edgerun.server.problems import Problem
    from edgerun.server.replies import Group
    from edgerun.server.responses.request import ResponseFields

Event: TypeAlias = dict[str, Any]
Item: TypeAlias = dict[str, Any]
IN_PROGRESS, COMPLETED, INCOMPLETE = "in_progress", "completed", "incomplete"
FAILED = "failed"
SERVER_ERROR = "server_error"  # of the codes that the API has, the one for what fails here
REASONING, MESSAGE = "reasoning", "message"
NAMES = {REASONING: "reasoning_text", MESSAGE: "output_text"}  # of their parts


@dataclass
class ResponseWork(SingleWork):
    """One request for a response.

    Attributes:
        functions: that may be called.
        drawing: sampling options with which tokens are drawn, as far as a response repeats them.
    """

    fields: ResponseFields
    functions: Functions
    drawing: Mapping[str, Any]

    async def stream(self, group: Group, send: Send) -> None:
        writer = _Writer(self._object, self.functions)
        form = EventForm(named_event, writer.failed, b"")
        await send_events(writer.events(group), send, form)

    def whole(self, completion: Completion) -> dict[str, Any]:
        return self._object(_status(completion), output_of(completion, self.functions), completion)

    def _object(
        self,
        status: str,
        output: list[Item],
        completion: Completion | None = None,
        error: dict[str, Any] | None = None,
    ) -> dict[str, Any]:
        """The response as far as it came; it has a completion once it has ended."""
        head, fields = self.head.of("response"), self.fields
        return {
            "id": head["id"],
            "object": head["object"],
            "created_at": head["created"],
            "model": head["model"],
            "status": status,
            "error": error,
            "incomplete_details": _incomplete_details(completion) if completion else None,
            "instructions": fields.instructions,
            "max_output_tokens": fields.max_output_tokens,
            "metadata": fields.metadata or {},
            "output": output,
            "parallel_tool_calls": fields.parallel_tool_calls,
            "previous_response_id": None,
            "reasoning": {"effort": fields.reasoning.effort, "summary": fields.reasoning.summary},
            "store": False,
            **self.drawing,
            "text": {"format": fields.text.format or {"type": "text"}},
            "tool_choice": fields.tool_choice,
            "tools": fields.tools or [],
            "truncation": fields.truncation,
            "usage": _usage(completion) if completion else None,
        }


def output_of(completion: Completion, functions: Functions) -> list[Item]:
    """The items of a whole reply: thoughts, text and calls; one of nothing is an empty text."""
    texts = {REASONING: completion.thinking, MESSAGE: completion.text}
    kinds = [kind for kind in _order(completion) if texts[kind]]
    items = [_item(kind, texts[kind], status) for kind, status in _ends(kinds, completion)]
    return [*items, *(_call_item(call, functions) for call in completion.tool_calls)]


def _order(completion: Completion) -> tuple[str, str]:
    """What came first of a reply; a piece, which may hold both, cannot tell."""
    return (MESSAGE, REASONING) if completion.answers_first else (REASONING, MESSAGE)


def _ends(kinds: Iterable[str], completion: Completion) -> Iterator[tuple[str, str]]:
    """The kinds that a reply has, in their order, each with the status of its item."""
    *before, last = [*kinds] or ["" if completion.tool_calls else MESSAGE]
    yield from ((kind, COMPLETED) for kind in before)
    if last:
        is_over = last == REASONING and completion.tool_calls
        yield last, COMPLETED if is_over else _status(completion)


@dataclass
class _Open:
    """An item under way."""

    index: int
    item: Item
    texts: list[str] = field(default_factory=list)

    def ended(self, status: str) -> Item:
        """The item with the text that came."""
        content = [_part(self.item["type"], "".join(self.texts))]
        return {**self.item, "content": content, "status": status}


class _Writer:
    """Writes one response as events.

    A reply has one item of thoughts and one of text at most, and both stay open to its end: some
    models think again when they have said something, and no event opens an item again.
    """

    def __init__(self, response: Callable[..., dict[str, Any]], functions: Functions) -> None:
        self._response, self._functions = response, functions
        self._number = 0
        self._open: dict[str, _Open] = {}  # by kind
        self._output: list[Item] = []  # what has ended

    async def events(self, group: Group) -> AsyncIterator[Event]:
        """What becomes of the only reply of a group, from its first piece on."""
        (completion,) = group.completions
        async for came in group.pieces():
            if not self._number:
                for kind in ("created", IN_PROGRESS):
                    yield self._event(f"response.{kind}", response=self._response(IN_PROGRESS, []))
            texts = {REASONING: came.part.thinking, MESSAGE: came.part.text}
            for kind in _order(completion):
                if texts[kind]:
                    for event in self._said(kind, texts[kind]):
                        yield event
        for event in self._rest(completion):
            yield event

    def failed(self, problem: Problem) -> Event:
        """The last event of a response that fails in the middle."""
        error = {"code": SERVER_ERROR, "message": problem.body()["error"]["message"]}
        output = [each.ended(INCOMPLETE) for each in self._open.values()]
        return self._event("response.failed", response=self._response(FAILED, output, error=error))

    def _said(self, kind: str, text: str) -> Iterator[Event]:
        """More thoughts, or more text."""
        if kind not in self._open:
            yield from self._begun(kind)
        self._open[kind].texts.append(text)
        yield self._placed(kind, f"response.{NAMES[kind]}.delta", delta=text, **_unlikely(kind))

    def _rest(self, completion: Completion) -> Iterator[Event]:
        """The end of what is under way, calls, and the response."""
        for kind, status in _ends(self._open, completion):
            if kind not in self._open:
                yield from self._begun(kind)
            yield from self._ended(kind, status)
        for call in completion.tool_calls:
            yield from self._called(_call_item(call, self._functions))
        status = _status(completion)
        whole = self._response(status, self._output, completion)
        yield self._event(f"response.{status}", response=whole)

    def _begun(self, kind: str) -> Iterator[Event]:
        item = _item(kind, None, IN_PROGRESS)
        self._open[kind] = _Open(len(self._open), item)
        yield self._indexed("added", self._open[kind].index, item)
        yield self._placed(kind, "response.content_part.added", part=_part(kind, ""))

    def _ended(self, kind: str, status: str) -> Iterator[Event]:
        """The end of an item of thoughts or text."""
        under_way = self._open[kind]
        item = under_way.ended(status)
        (part,) = item["content"]
        name = f"response.{NAMES[kind]}.done"
        yield self._placed(kind, name, text=part["text"], **_unlikely(kind))
        yield self._placed(kind, "response.content_part.done", part=part)
        yield self._indexed("done", under_way.index, item)
        self._output.append(item)

    def _called(self, item: Item) -> Iterator[Event]:
        """A call, which comes whole."""
        index, arguments = len(self._output), item["arguments"]
        place = {"item_id": item["id"], "output_index": index}
        kind = "response.function_call_arguments"
        yield self._indexed("added", index, {**item, "arguments": "", "status": IN_PROGRESS})
        yield self._event(f"{kind}.delta", **place, delta=arguments)
        yield self._event(f"{kind}.done", **place, name=item["name"], arguments=arguments)
        yield self._indexed("done", index, item)
        self._output.append(item)

    def _indexed(self, what: str, index: int, item: Item) -> Event:
        return self._event(f"response.output_item.{what}", output_index=index, item=item)

    def _placed(self, of: str, kind: str, **fields: Any) -> Event:
        """An event of an item's only part."""
        index, id_ = self._open[of].index, self._open[of].item["id"]
        place = {"item_id": id_, "output_index": index, "content_index": 0}
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


def _call_item(call: ToolCall, functions: Functions) -> Item:
    return {
        "type": "function_call",
        "id": f"fc_{uuid.uuid4().hex}",
        "call_id": call.id,
        **functions.own_name(call.name),
        "arguments": call.arguments,
        "status": COMPLETED,
    }


def _status(completion: Completion) -> str:
    return INCOMPLETE if completion.finish_reason in LENGTHS else COMPLETED


def _incomplete_details(completion: Completion) -> dict[str, str] | None:
    """Why a response is not whole, as the API has it, and more exactly where that says too little.

    Clients know the API's reasons and no others.
    """
    reason = completion.finish_reason
    if reason not in LENGTHS:
        return None
    detail = {} if reason == "length" else {"detail": reason}
    return {"reason": "max_output_tokens", **detail}


def _usage(completion: Completion) -> dict[str, Any]:
    prompt, generated = completion.prompt_tokens, len(completion.ids)
    return {
        "input_tokens": prompt,
        "input_tokens_details": {"cached_tokens": completion.stats.reused_tokens},
        "output_tokens": generated,
        "output_tokens_details": {"reasoning_tokens": completion.thinking_tokens},
        "total_tokens": prompt + generated,
    }
