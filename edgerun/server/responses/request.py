"""What a request asks for: items become messages, and functions what chats are given."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from edgerun.engine.chooser.params import all_options
from edgerun.llm.replies.several import chat_replies
from edgerun.llm.replies.stream import TextStream
from edgerun.model.chat.conversation import DEVELOPER, SYSTEM, joined
from edgerun.server.body import Sent, as_options, split, with_sent
from edgerun.server.encoding.shapes import shape_of
from edgerun.server.problems import PROMPT, Problem
from edgerun.server.responses.answer import ResponseWork
from edgerun.server.responses.functions import functions_of, read_name
from edgerun.server.work import CONVERSATION, ConversationFields, Head, with_effort
from edgerun.values import shown

if TYPE_CHECKING:
    from edgerun.llm.llm import LLM

REPEATED = ("temperature", "top_p")  # sampling options that a response has to have
REFUSAL = "refusal"  # a part, and its text, which the assistant said in place of another
TEXT_PARTS = ("input_text", "output_text", "text")
# What cannot be done where nothing is stored and nothing runs unasked.
WITHOUT = ("previous_response_id", "conversation", "prompt")
ENCRYPTED = "reasoning.encrypted_content"  # thoughts are there as they are


class TextFormat(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """``text.format``, which the response repeats as it was asked for.

    A reply follows its schema whether it is strict or not.
    """

    type: Literal["text", "json_object", "json_schema"]
    name: str | None = None
    description: str | None = None
    schema: dict[str, Any] | bool | None = None
    strict: bool | None = None


class TextFields(msgspec.Struct, forbid_unknown_fields=True):
    """``text``."""

    format: TextFormat | None = None
    verbosity: Literal["medium"] | None = None


class ReasoningFields(msgspec.Struct, forbid_unknown_fields=True):
    """``reasoning``; thoughts are told whole, however short a summary is asked for."""

    effort: str | None = None
    summary: Literal["auto", "concise", "detailed"] | None = None


class ResponseFields(ConversationFields, kw_only=True):
    """Fields of a request that are no sampling options."""

    input: str | list[dict[str, Any]]
    instructions: str | None = None
    max_output_tokens: Any = None
    text: TextFields = msgspec.field(default_factory=TextFields)
    reasoning: ReasoningFields = msgspec.field(default_factory=ReasoningFields)
    include: list[str] = msgspec.field(default_factory=list)
    store: bool = False
    background: bool = False
    truncation: Literal["disabled"] = "disabled"
    service_tier: Literal["auto", "default"] | None = None
    previous_response_id: Any = None
    conversation: Any = None
    prompt: Any = None
    max_tool_calls: Any = None
    top_logprobs: int = 0  # which asks for none
    client_metadata: dict[str, Any] | None = None  # Codex: who asks, as in ``metadata``


def read_response(body: dict[str, Any], llm: LLM, head: Head) -> ResponseWork:
    """What a request asks for.

    Raises:
        Problem: it cannot be done.
    """
    fields, sampling = split(body, ResponseFields, frozenset({"logprobs"}))
    _check(fields)
    drawing = _drawing(sampling, llm)
    others = _length(fields, sampling) | _schema(fields, sampling)
    sampling, sent = with_sent(as_options(sampling), others)
    fields.check_calls(sampling)
    messages, functions = messages_of(fields), functions_of(fields.tools)
    values = with_effort(
        fields.chat_template_kwargs, fields.reasoning.effort, "reasoning.effort", llm.model.template
    )

    def make() -> list[TextStream]:
        return chat_replies(
            llm,
            messages,
            1,
            tools=functions.tools,
            tool_choice=_tool_choice(fields),
            template_values=values,
            several_calls=fields.parallel_tool_calls,
            **sampling,
        )

    sent |= {PROMPT: "input", **CONVERSATION}  # without messages, which are others than the items
    sent |= {f"tools[{index}]": place for index, place in enumerate(functions.fields)}
    shape = shape_of(
        sampling, 1, functions.tools, fields.tool_choice, several=fields.parallel_tool_calls
    )
    return ResponseWork(fields, make, head, sent, shape, functions, drawing)


def messages_of(fields: ResponseFields) -> list[dict[str, Any]]:
    """The conversation that instructions and items are.

    Raises:
        Problem: an item is of another kind, or holds other things than text.
    """
    if isinstance(fields.input, str):
        return _instructed(fields.instructions, [{"role": "user", "content": fields.input}])
    conversation = _Conversation()
    for index, item in enumerate(fields.input):
        conversation.add(item, f"input[{index}]")
    return _instructed(fields.instructions, conversation.ended())


def _instructed(instructions: str | None, messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Messages with instructions before them, or in front of what the first says to the model."""
    if not instructions:
        return messages
    follows = messages[:1] if messages and messages[0]["role"] in (SYSTEM, DEVELOPER) else []
    said = joined([instructions, *(message["content"] for message in follows)])
    return [{"role": SYSTEM, "content": said}, *messages[len(follows) :]]


class _Conversation:
    """Items, taken in their order: thoughts and calls belong to a message of the assistant.

    Thoughts are those of the message or call behind them; where there is none, they are a message.
    """

    def __init__(self) -> None:
        self._messages: list[dict[str, Any]] = []
        self._thoughts: list[str] = []  # that belong to what comes

    def add(self, item: dict[str, Any], place: str) -> None:
        kind = item.get("type", "message")
        if kind == "message":
            self._add({"role": item.get("role"), "content": _text(item.get("content"), place)})
        elif kind == "reasoning":
            thought = _text(item.get("content") or item.get("summary") or "", place)
            self._thoughts += [thought] if thought else []
        elif kind == "function_call":
            self._assistant()["tool_calls"].append(_call(item, place))
        elif kind == "function_call_output":
            text = _text(item.get("output"), place)
            id_ = _string(item, "call_id", place)
            self._add({"role": "tool", "tool_call_id": id_, "content": text})
        else:
            raise Problem(
                400,
                f"{place} is an item of type {shown(kind)}; expected message, reasoning, "
                "function_call or function_call_output",
                "invalid_value",
                place,
            )

    def ended(self) -> list[dict[str, Any]]:
        """The messages, once all items were taken."""
        self._think()
        return self._messages

    def _add(self, message: dict[str, Any]) -> None:
        if self._thoughts and message["role"] == "assistant":
            message["reasoning_content"] = joined(self._thoughts)
            self._thoughts = []
        self._think()
        self._messages.append(message)

    def _think(self) -> None:
        """Makes a message of thoughts behind which the assistant says nothing."""
        if self._thoughts:
            self._add({"role": "assistant", "content": ""})

    def _assistant(self) -> dict[str, Any]:
        """The message of the assistant that a call belongs to."""
        self._think()
        if not self._messages or self._messages[-1]["role"] != "assistant":
            self._add({"role": "assistant", "content": ""})
        last = self._messages[-1]
        last.setdefault("tool_calls", [])
        return last


def _text(content: Any, place: str) -> str:
    """Text, or the text of parts."""
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, list) else [content]
    texts = [_part(part, place) for part in parts]
    return "\n".join(texts)


def _part(part: Any, place: str) -> str:
    kind = part.get("type") if isinstance(part, dict) else None
    text = part.get("text") if isinstance(part, dict) else None
    if kind == REFUSAL and isinstance(part.get(REFUSAL), str):
        return str(part[REFUSAL])
    if kind not in (*TEXT_PARTS, "reasoning_text", "summary_text") or not isinstance(text, str):
        raise Problem(
            400,
            f"{place} holds {shown(part)}; models here read text only, as a string or as parts of "
            f"type {', '.join(TEXT_PARTS[:2])}",
            "invalid_value",
            place,
        )
    return text


def _call(item: dict[str, Any], place: str) -> dict[str, Any]:
    name, arguments = _string(item, "name", place), _string(item, "arguments", place)
    if item.get("namespace") is not None:
        name = read_name(_string(item, "namespace", place), name)
    function = {"name": name, "arguments": arguments}
    return {"id": _string(item, "call_id", place), "type": "function", "function": function}


def _string(item: dict[str, Any], name: str, place: str) -> str:
    value = item.get(name)
    if not isinstance(value, str):
        raise Problem(
            400, f"{place}.{name} is {shown(value)}; expected a text", "invalid_value", place
        )
    return value


def _tool_choice(fields: ResponseFields) -> str | dict[str, Any]:
    choice = fields.tool_choice
    if isinstance(choice, dict) and choice.get("type") == "function":
        name = choice.get("name")
        if isinstance(choice.get("namespace"), str) and isinstance(name, str):
            name = read_name(choice["namespace"], name)
        return {"type": "function", "function": {"name": name}}
    return choice


def _drawing(sampling: Mapping[str, Any], llm: LLM) -> dict[str, Any]:
    """What a response repeats of how tokens are drawn: what was sent, or what holds without it."""
    usual = {entry.name: entry.default for entry in all_options()}
    used = {**usual, **llm.model.sampling_defaults, **sampling}
    return {name: used[name] for name in REPEATED}


def _length(fields: ResponseFields, sampling: dict[str, Any]) -> dict[str, Sent]:
    if fields.max_output_tokens is None:
        return {}
    if "max_tokens" in sampling:
        raise Problem(
            400,
            "max_output_tokens and max_tokens are both given: leave one out",
            "invalid_value",
            "max_output_tokens",
        )
    return {"max_tokens": Sent(fields.max_output_tokens, "max_output_tokens")}


def _schema(fields: ResponseFields, sampling: dict[str, Any]) -> dict[str, Sent]:
    form = fields.text.format
    if form is None or form.type == "text":
        return {}
    if "json_schema" in sampling:
        raise Problem(
            400,
            "text.format and json_schema are both given: leave one out",
            "invalid_value",
            "text.format",
        )
    if form.type == "json_object":
        return {"json_schema": Sent({"type": "object"}, "text.format")}
    if form.schema is None:
        raise Problem(400, "text.format has no schema", "invalid_value", "text.format")
    return {"json_schema": Sent(form.schema, "text.format.schema")}


def _check(fields: ResponseFields) -> None:
    """Makes sure that nothing is asked for which is not there."""
    stored = [name for name in WITHOUT if getattr(fields, name) is not None]
    stored += [name for name in ("store", "background") if getattr(fields, name)]
    if stored:
        raise Problem(
            400,
            f"{stored[0]}: nothing is stored here between requests: send the whole conversation, "
            "and leave it out",
            "unsupported",
            stored[0],
        )
    if fields.max_tool_calls is not None:
        raise Problem(
            400,
            "max_tool_calls: it counts tools that a server runs, and none are run here: leave it "
            "out",
            "unsupported",
            "max_tool_calls",
        )
    asked: list[tuple[str, Any]] = [("include", each) for each in fields.include]
    asked += [("top_logprobs", fields.top_logprobs)] if fields.top_logprobs else []
    for name, value in asked:
        if value == ENCRYPTED:
            continue
        raise Problem(
            400,
            f"{name}: {shown(value)} is not to be had; log-probabilities are told by "
            "/v1/chat/completions",
            "unsupported",
            name,
        )
