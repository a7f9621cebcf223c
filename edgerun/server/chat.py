"""``/v1/chat/completions``: replies to conversations."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from edgerun.engine.chooser.logprobs import TokenLogprob
from edgerun.llm.replies.completion import Completion, Part
from edgerun.llm.replies.several import chat_replies
from edgerun.llm.replies.stream import TextStream
from edgerun.model.text.tokenizer import Tokenizer
from edgerun.server.body import Sent, as_options, split, with_sent
from edgerun.server.encoding.shapes import shape_of
from edgerun.server.logprobs import chat_logprobs
from edgerun.server.problems import PROMPT, Problem
from edgerun.server.work import (
    CONVERSATION,
    EFFORT,
    ConversationFields,
    Count,
    Head,
    Work,
    finish_reason,
    with_effort,
)
from edgerun.values import as_int, shown

if TYPE_CHECKING:
    from edgerun.llm.llm import LLM


TIERS = ("auto", "default")


class SchemaFields(msgspec.Struct, forbid_unknown_fields=True):
    """``response_format.json_schema``; a reply follows its schema whether it is strict or not."""

    schema: dict[str, Any] | bool | None = None
    name: str | None = None
    description: str | None = None
    strict: bool | None = None


class FormatFields(msgspec.Struct, forbid_unknown_fields=True):
    """``response_format``."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: SchemaFields | None = None


class ChatFields(ConversationFields, kw_only=True):
    """Fields of a request that are no sampling options.

    ``store``, ``service_tier``, ``verbosity`` and ``modalities`` are there with the values that ask
    for nothing: clients send them. ``prediction``, what a reply will say in the main, is about the
    time that it takes, and is not looked at.
    """

    messages: list[dict[str, Any]]
    n: Count = 1
    max_completion_tokens: Any = None
    response_format: FormatFields | None = None
    logprobs: bool = False
    top_logprobs: Any = None
    reasoning_effort: str | None = None
    store: bool = False
    service_tier: str = "auto"
    verbosity: str = "medium"
    prediction: dict[str, Any] | None = None
    modalities: list[str] = msgspec.field(default_factory=lambda: ["text"])


class ChatForm:
    """Writes replies as messages of the assistant."""

    def __init__(self, head: Head, tokenizer: Tokenizer) -> None:
        """Takes what all objects of the answer share, and what spells tokens."""
        self._head, self._tokenizer = head, tokenizer

    def head(self) -> dict[str, Any]:
        return self._head.of("chat.completion")

    def whole(self, index: int, completion: Completion) -> dict[str, Any]:
        message = {**completion.message, "refusal": None}  # which it has in OpenAI's API
        if completion.tool_calls and not completion.text:
            message["content"] = None
        return {"message": message, "logprobs": None, **finish_reason(completion)}

    def first(self, index: int) -> list[dict[str, Any]]:
        return [_delta({"role": "assistant", "content": ""})]

    def piece(self, part: Part) -> dict[str, Any]:
        thoughts = {"reasoning_content": part.thinking} if part.thinking else {}
        return _delta({**thoughts, **({"content": part.text} if part.text else {})})

    def last(self, completion: Completion) -> list[dict[str, Any]]:
        calls = completion.message.get("tool_calls", [])
        numbered = [{"index": number, **call} for number, call in enumerate(calls)]
        said = [_delta({"tool_calls": numbered})] if numbered else []
        return [*said, {**_delta({}), **finish_reason(completion)}]

    def logprobs(self, index: int, entries: Sequence[TokenLogprob]) -> dict[str, Any]:
        return chat_logprobs(entries, self._tokenizer)


class ChatChunkForm(ChatForm):
    """The same in chunks."""

    def head(self) -> dict[str, Any]:
        return self._head.of("chat.completion.chunk")


def read_chat(body: dict[str, Any], llm: LLM, head: Head) -> Work:
    """What a request asks for.

    Raises:
        Problem: it cannot be done.
    """
    fields, sampling = split(body, ChatFields, frozenset({"logprobs"}))
    _check_offers(fields)
    others = _length(fields, sampling) | _schema(fields, sampling) | _logprobs(fields)
    sampling, sent = with_sent(as_options(sampling), others)
    form = (ChatChunkForm if fields.stream else ChatForm)(head, llm.tokenizer)
    fields.check_calls(sampling)
    values = with_effort(
        fields.chat_template_kwargs, fields.reasoning_effort, EFFORT, llm.model.template
    )

    messages = [_said(message) for message in fields.messages]

    def make() -> list[TextStream]:
        return chat_replies(
            llm,
            messages,
            fields.n,
            tools=fields.tools,
            tool_choice=fields.tool_choice,
            template_values=values,
            several_calls=fields.parallel_tool_calls,
            **sampling,
        )

    sent |= {PROMPT: "messages", "messages": "messages", **CONVERSATION}
    shape = shape_of(
        sampling, fields.n, fields.tools, fields.tool_choice, several=fields.parallel_tool_calls
    )
    with_logprobs = "logprobs" in sampling
    return Work(fields, make, fields.n, form, sent, shape, with_logprobs=with_logprobs)


def _check_offers(fields: ChatFields) -> None:
    """Refuses what other servers may have on offer.

    Raises:
        Problem: the request asks for it.
    """
    offers = {
        "store": (not fields.store, "nothing is stored here; expected false"),
        "service_tier": (
            fields.service_tier in TIERS,
            f"there is no tier {shown(fields.service_tier)} here; expected 'auto' or 'default'",
        ),
        "verbosity": (
            fields.verbosity == "medium",
            f"models are not told to be {shown(fields.verbosity)} here; expected 'medium'",
        ),
        "modalities": (
            fields.modalities == ["text"],
            f"replies are text, and not {shown(fields.modalities)}; expected ['text']",
        ),
    }
    for name, (is_here, reason) in offers.items():
        if not is_here:
            raise Problem(400, f"{name}: {reason}, or leave it out", "invalid_value", name)


def _delta(delta: dict[str, Any]) -> dict[str, Any]:
    return {"delta": delta, "logprobs": None, "finish_reason": None}


def _said(message: dict[str, Any]) -> dict[str, Any]:
    """A message as templates know it: a refusal of the assistant's is text that it said."""
    content = message.get("content")
    if message.get("role") != "assistant":
        return message
    if isinstance(content, list):
        return {**message, "content": [_spoken(part) for part in content]}
    if content is None and isinstance(message.get("refusal"), str):
        return {**message, "content": message["refusal"]}
    return message


def _spoken(part: Any) -> Any:
    if isinstance(part, dict) and part.get("type") == "refusal":
        return {"type": "text", "text": part.get("refusal")}
    return part


def _length(fields: ChatFields, sampling: dict[str, Any]) -> dict[str, Sent]:
    most = fields.max_completion_tokens
    if most is None:
        return {}
    if sampling.get("max_tokens", most) != most:
        raise Problem(
            400,
            "max_completion_tokens and max_tokens say different things: leave one out",
            "invalid_value",
            "max_completion_tokens",
        )
    return {"max_tokens": Sent(most, "max_completion_tokens")}


def _schema(fields: ChatFields, sampling: dict[str, Any]) -> dict[str, Sent]:
    form = fields.response_format
    if form is None:
        return {}
    if form.json_schema is not None and form.type != "json_schema":
        raise Problem(
            400,
            f"response_format has a json_schema, and its type is {form.type!r}: leave one out",
            "invalid_value",
            "response_format",
        )
    if form.type == "text":
        return {}
    if "json_schema" in sampling:
        raise Problem(
            400,
            "response_format and json_schema are both given: leave one out",
            "invalid_value",
            "response_format",
        )
    if form.type == "json_object":
        return {"json_schema": Sent({"type": "object"}, "response_format")}
    if form.json_schema is None or form.json_schema.schema is None:
        raise Problem(400, "response_format has no json_schema.schema", None, "response_format")
    return {"json_schema": Sent(form.json_schema.schema, "response_format.json_schema.schema")}


def _logprobs(fields: ChatFields) -> dict[str, Sent]:
    if fields.logprobs:
        count = 0 if fields.top_logprobs is None else fields.top_logprobs
        return {"logprobs": Sent(count, "top_logprobs")}
    if fields.top_logprobs is not None and as_int(fields.top_logprobs) != 0:
        raise Problem(
            400, "top_logprobs is for logprobs: true: add it", "invalid_value", "top_logprobs"
        )
    return {}
