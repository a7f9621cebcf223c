"""What is to be done for a request, and how its answer is written."""

from __future__ import annotations

import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, Protocol

import msgspec

from edgerun.engine.chooser.logprobs import TokenLogprob
from edgerun.llm.replies.completion import Completion, Part
from edgerun.llm.replies.stream import TextStream
from edgerun.llm.tools import AUTO
from edgerun.model.chat.switches import reads
from edgerun.model.chat.template import ChatTemplate
from edgerun.server.answers import send_events, send_json
from edgerun.server.encoding.shapes import Shape
from edgerun.server.problems import Problem
from edgerun.values import shown

if TYPE_CHECKING:
    from starlette.types import Send

    from edgerun.server.replies import Group, Replies

MOST_CHOICES = 128
EFFORT = "reasoning_effort"
LENGTHS = ("length", "context", "memory")  # ends that callers know as "length"
Count = Annotated[int, msgspec.Meta(ge=1, le=MOST_CHOICES)]


class StreamFields(msgspec.Struct, forbid_unknown_fields=True):
    """``stream_options``."""

    include_usage: bool | None = None
    include_obfuscation: bool | None = None  # nothing here is to be obfuscated


class CommonFields(msgspec.Struct, kw_only=True):
    """Fields that all requests share; those of sampling are not among them.

    ``user``, ``metadata``, ``safety_identifier`` and ``prompt_cache_key`` say who asks, and
    ``prompt_cache_retention`` how soon again, which makes no difference to a model.
    """

    model: str | None = None
    stream: bool = False
    stream_options: StreamFields = msgspec.field(default_factory=StreamFields)
    user: str | None = None
    metadata: dict[str, str] | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    prompt_cache_retention: str | None = None


CONVERSATION = {  # arguments that all chats have, and their fields
    "tools": "tools",
    "tool_choice": "tool_choice",
    "template_values": "chat_template_kwargs",
}


class ConversationFields(CommonFields, kw_only=True):
    """Fields of requests that hold a conversation, in which functions may be called."""

    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] = AUTO
    parallel_tool_calls: bool = True
    chat_template_kwargs: dict[str, Any] = msgspec.field(default_factory=dict)

    def check_calls(self, sampling: Mapping[str, Any]) -> None:
        """Makes sure that so many calls as are asked for can be promised.

        Args:
            sampling: options; with a schema of answers calls have a grammar as well.

        Raises:
            Problem: a model that may call and say what it likes is to call once at most.
        """
        is_free = self.tool_choice == AUTO and sampling.get("json_schema") is None
        if self.tools and is_free and not self.parallel_tool_calls:
            raise Problem(
                400,
                "parallel_tool_calls: a model that may call functions calls as many as it likes: "
                "leave it out, or have it call one: tool_choice is 'required' then, or names the "
                "function; or say by a schema what it may answer instead",
                "invalid_value",
                "parallel_tool_calls",
            )


class Form(Protocol):
    """How the replies of one kind of request are written."""

    def head(self) -> dict[str, Any]:
        """What every object of the answer has; ``object`` is its kind."""

    def whole(self, index: int, completion: Completion) -> dict[str, Any]:
        """A choice, once it has ended."""

    def first(self, index: int) -> list[dict[str, Any]]:
        """What is said of a choice before its text."""

    def piece(self, part: Part) -> dict[str, Any]:
        """What is new of a choice that has not ended."""

    def last(self, completion: Completion) -> list[dict[str, Any]]:
        """The end of a choice."""

    def logprobs(self, index: int, entries: Sequence[TokenLogprob]) -> dict[str, Any]:
        """What is told of the tokens of a choice that came since the last call."""


class Asked(Protocol):
    """A request that was read."""

    @property
    def model(self) -> str | None:
        """The model that it names."""

    def tokens(self) -> int:
        """Tokens of its replies, as far as they came."""

    async def answer(self, replies: Replies, send: Send) -> None:
        """Runs the replies and sends what comes of them.

        Raises:
            Problem, EdgerunError: nothing was sent.
        """


class _Fields(Protocol):
    @property
    def model(self) -> str | None: ...

    @property
    def stream(self) -> bool: ...


@dataclass
class SingleWork(ABC):
    """One request for one reply.

    Attributes:
        fields: what was asked for.
        make: encodes the conversation.
        head: what all objects share.
        sent: the fields of the arguments that were sent, for errors.
        shape: the form that the reply follows.
    """

    fields: _Fields
    make: Callable[[], list[TextStream]]
    head: Head
    sent: Mapping[str, str]
    shape: Shape | None
    _completion: Completion | None = field(default=None, init=False)

    @property
    def model(self) -> str | None:
        return self.fields.model

    def tokens(self) -> int:
        return len(self._completion.ids) if self._completion else 0

    async def answer(self, replies: Replies, send: Send) -> None:
        async with replies.open(self.make, 1, self.sent, self.shape) as group:
            (completion,) = group.completions
            self._completion = completion
            if self.fields.stream:
                await self.stream(group, send)
                return
            async for _ in group.pieces():
                pass
            await send_json(200, self.whole(completion), send)

    @abstractmethod
    async def stream(self, group: Group, send: Send) -> None:
        """Sends events as the only reply of a group comes."""

    @abstractmethod
    def whole(self, completion: Completion) -> dict[str, Any]:
        """What a reply is that has ended."""


@dataclass
class Work:
    """One request for choices.

    Attributes:
        fields: what they all have.
        make: encodes the prompts.
        count: replies in all.
        form: writes them.
        sent: the fields of the arguments that were sent, for errors.
        shape: the form that replies follow.
        prompts: of them, each with ``n`` replies.
        with_logprobs: whether replies tell how likely their tokens were, also where there are none.
    """

    fields: CommonFields
    make: Callable[[], list[TextStream]]
    count: int
    form: Form
    sent: Mapping[str, str]
    shape: Shape | None = None
    prompts: int = 1
    with_logprobs: bool = False
    _completions: Sequence[Completion] = ()

    @property
    def model(self) -> str | None:
        return self.fields.model

    def tokens(self) -> int:
        return sum(len(completion.ids) for completion in self._completions)

    async def answer(self, replies: Replies, send: Send) -> None:
        async with replies.open(self.make, self.count, self.sent, self.shape) as group:
            self._completions = group.completions
            if self.fields.stream:
                await send_events(self._events(group), send)
            else:
                async for _ in group.pieces():
                    pass
                choices = [
                    {"index": index, **self._whole(index, completion)}
                    for index, completion in enumerate(group.completions)
                ]
                usage = self._usage(group.completions)
                await send_json(200, {**self.form.head(), "choices": choices, "usage": usage}, send)

    def _whole(self, index: int, completion: Completion) -> dict[str, Any]:
        choice = self.form.whole(index, completion)
        if self.with_logprobs:
            choice["logprobs"] = self.form.logprobs(index, completion.logprobs)
        return choice

    async def _events(self, group: Group) -> AsyncIterator[dict[str, Any]]:
        form, head = self.form, self.form.head()
        with_usage = bool(self.fields.stream_options.include_usage)
        shared = {**head, "usage": None} if with_usage else head
        told: dict[int, int] = {}  # tokens of each choice
        async for came in group.pieces():
            index, completion = came.choice, group.completions[came.choice]
            choices = [] if index in told else form.first(index)
            news = [form.piece(came.part)] if any(came.part) else []
            if came.is_last:
                news += form.last(completion)
            if entries := completion.logprobs[told.get(index, 0) : came.tokens]:
                news[0]["logprobs"] = form.logprobs(index, entries)
            told[index] = came.tokens
            for choice in choices + news:
                yield {**shared, "choices": [{"index": index, **choice}]}
        if with_usage:
            yield {**head, "choices": [], "usage": self._usage(group.completions)}

    def _usage(self, completions: Sequence[Completion]) -> dict[str, Any]:
        prompts = completions[:: len(completions) // self.prompts]  # the first reply of each
        prompt = sum(completion.prompt_tokens for completion in prompts)
        generated = sum(len(completion.ids) for completion in completions)
        reused = sum(completion.stats.reused_tokens for completion in prompts)
        thinking = sum(completion.thinking_tokens for completion in completions)
        return {
            "prompt_tokens": prompt,
            "completion_tokens": generated,
            "total_tokens": prompt + generated,
            "prompt_tokens_details": {"cached_tokens": reused},
            "completion_tokens_details": {"reasoning_tokens": thinking},
        }


@dataclass
class Head:
    """What every object of an answer has.

    Attributes:
        prefix: begins its id.
        model: name of the model.
        fingerprint: of the model.
    """

    prefix: str
    model: str
    fingerprint: str
    created: int = field(default_factory=lambda: int(time.time()))
    id: str = field(default_factory=lambda: uuid.uuid4().hex)

    def of(self, kind: str) -> dict[str, Any]:
        """The fields of an object of a kind."""
        return {
            "id": f"{self.prefix}-{self.id}",
            "object": kind,
            "created": self.created,
            "model": self.model,
            "system_fingerprint": self.fingerprint,
        }


def finish_reason(completion: Completion) -> dict[str, Any]:
    """Why a reply ended, as callers know it, and more exactly where that says too little."""
    reason = completion.finish_reason
    if reason == "stop" and completion.tool_calls:
        return {"finish_reason": "tool_calls"}
    if reason not in LENGTHS:
        return {"finish_reason": reason}
    detail = {} if reason == "length" else {"finish_detail": reason}
    return {"finish_reason": "length", **detail}


def with_effort(
    values: Mapping[str, Any], effort: str | None, field: str, template: ChatTemplate
) -> dict[str, Any] | None:
    """What the chat template is told, how much to think among it; None for nothing.

    Args:
        values: what it is told beside that.
        effort: how much to think.
        field: which says so.
        template: the model's.

    Raises:
        Problem: two places say how much, or the template reads none of them.
    """
    if effort is None:
        return dict(values) or None
    reason = ""
    if values.get(EFFORT, effort) != effort:
        reason = f"and {shown(values[EFFORT])} in chat_template_kwargs: leave one out"
    elif template.is_default or not reads(template, EFFORT):
        reason = "which no chat template of this model reads: leave it out"
    if reason:
        raise Problem(400, f"{field} is {shown(effort)}, {reason}", "invalid_value", field)
    return {**values, EFFORT: effort}
