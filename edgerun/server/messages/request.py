"""What a request asks for: messages become those of chats, and tools functions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from edgerun.engine.chooser.params import all_options
from edgerun.llm.replies.several import chat_replies, prompt_tokens
from edgerun.llm.replies.stream import TextStream
from edgerun.llm.tools import AUTO, NONE, REQUIRED
from edgerun.model.chat.switches import reads
from edgerun.server.body import Sent, as_options, split, with_sent
from edgerun.server.encoding.shapes import shape_of
from edgerun.server.messages.answer import CountWork, MessageWork
from edgerun.server.messages.conversation import check_fields, conversation_of
from edgerun.server.problems import Problem
from edgerun.server.work import CONVERSATION, EFFORT, Head, with_effort
from edgerun.values import shown

if TYPE_CHECKING:
    from edgerun.llm.llm import LLM

DIRECT = ["direct"]  # the callers of a tool that nobody's code calls
CHOICES = {"auto": AUTO, "any": REQUIRED, "none": NONE}
USUAL_EFFORT = "high"  # what leaving it out means
TOOL_FIELDS = (
    *("type", "name", "description", "input_schema"),
    *("cache_control", "strict", "eager_input_streaming", "defer_loading"),
    *("allowed_callers", "input_examples"),
)
KEEPS_THOUGHTS = {"type": "clear_thinking_20251015", "keep": "all"}  # which asks for nothing
SENT = {**CONVERSATION, "think": "thinking", "thinking_budget": "thinking"}


class FormatFields(msgspec.Struct, forbid_unknown_fields=True):
    """``output_config.format``."""

    type: Literal["json_schema"]
    schema: dict[str, Any] | bool


class OutputFields(msgspec.Struct, forbid_unknown_fields=True):
    """``output_config``."""

    effort: str | None = None
    format: FormatFields | None = None


class ThinkingFields(msgspec.Struct, forbid_unknown_fields=True):
    """``thinking``; of ``adaptive`` the model does what it does by itself."""

    type: Literal["enabled", "disabled", "adaptive"]
    budget_tokens: Any = None
    display: Literal["summarized", "omitted"] | None = None

    @property
    def think(self) -> bool | None:
        """Whether the model is to think; None for what it does by itself."""
        return None if self.type == "adaptive" else self.type == "enabled"


class ToolChoiceFields(msgspec.Struct, forbid_unknown_fields=True):
    """``tool_choice``."""

    type: Literal["auto", "any", "tool", "none"] = "auto"
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


class ContextFields(msgspec.Struct, forbid_unknown_fields=True):
    """``context_management``."""

    edits: list[dict[str, Any]] = msgspec.field(default_factory=list)


class PromptFields(msgspec.Struct, kw_only=True):
    """Fields of which prompts are made.

    ``cache_control``, ``speed`` and ``context_management`` are there with the values that make no
    difference to what a model says.
    """

    messages: list[dict[str, Any]]
    model: str | None = None
    system: str | list[Any] | None = None
    tools: list[dict[str, Any]] = msgspec.field(default_factory=list)
    tool_choice: ToolChoiceFields = msgspec.field(default_factory=ToolChoiceFields)
    thinking: ThinkingFields | None = None
    output_config: OutputFields = msgspec.field(default_factory=OutputFields)
    output_format: FormatFields | None = None
    chat_template_kwargs: dict[str, Any] = msgspec.field(default_factory=dict)
    cache_control: dict[str, Any] | None = None
    speed: Literal["standard"] | None = None
    context_management: ContextFields = msgspec.field(default_factory=ContextFields)


class MessageFields(PromptFields, kw_only=True):
    """Fields of a request that are no sampling options, but for the length, which has to be there.

    ``metadata``, ``service_tier`` and ``diagnostics``, which asks why a cache was of no use, make
    no difference to what a model says.
    """

    max_tokens: Any
    stream: bool = False
    stop_sequences: Any = None
    metadata: dict[str, Any] | None = None
    service_tier: Literal["auto", "standard_only"] | None = None
    diagnostics: dict[str, Any] | None = None


def read_message(body: dict[str, Any], llm: LLM, head: Head) -> MessageWork:
    """What a request asks for.

    Raises:
        Problem: it cannot be done.
    """
    fields, sampling = split(body, MessageFields, frozenset({"logprobs"}))
    asked = _asked(fields, llm)
    others = _length(fields, sampling) | _stops(fields, sampling) | _schema(fields, sampling)
    sampling, sent = with_sent(as_options(sampling), others)
    several = not fields.tool_choice.disable_parallel_tool_use
    if not several and "json_schema" not in sampling:
        _check_calls(fields)

    def make() -> list[TextStream]:
        return chat_replies(llm, count=1, several_calls=several, **asked, **sampling)

    shape = shape_of(sampling, 1, asked["tools"], asked["tool_choice"], several=several)
    stops = sampling.get("stop")
    return MessageWork(fields, make, head, {**_sent(fields), **sent}, shape, _texts(stops))


def read_count(body: dict[str, Any], llm: LLM, head: Head) -> CountWork:
    """What a request asks for, of which only the prompt is made.

    Raises:
        Problem: it cannot be done.
    """
    fields, _ = split(body, PromptFields, frozenset(entry.name for entry in all_options()))
    asked = _asked(fields, llm)
    return CountWork(fields.model, lambda: prompt_tokens(llm, **asked), _sent(fields))


def _sent(fields: PromptFields) -> dict[str, str]:
    """The fields of arguments that have other names."""
    return {**SENT, "beginning": f"messages[{len(fields.messages) - 1}]"}


def _asked(fields: PromptFields, llm: LLM) -> dict[str, Any]:
    """The arguments of the library of which prompts are made."""
    _check_edits(fields.context_management.edits)
    effort, template = fields.output_config.effort, llm.model.template
    if effort == USUAL_EFFORT and not reads(template, EFFORT):
        effort = None
    conversation = conversation_of(fields.messages, fields.system)
    return {
        **conversation._asdict(),
        "tools": [_tool(tool, f"tools[{index}]") for index, tool in enumerate(fields.tools)],
        "tool_choice": _tool_choice(fields),
        "template_values": with_effort(
            fields.chat_template_kwargs, effort, "output_config.effort", template
        ),
        "think": fields.thinking.think if fields.thinking else None,
    }


def _tool(tool: Mapping[str, Any], place: str) -> dict[str, Any]:
    """A function as chats have it."""
    given = {name: value for name, value in tool.items() if value is not None}
    if given.get("type", "custom") != "custom":
        raise Problem(
            400,
            f"{place} is of type {shown(given['type'])}, which nobody runs here; expected "
            "'custom', a tool with an input_schema",
            "invalid_value",
            place,
        )
    check_fields(given, TOOL_FIELDS, place)
    if given.get("defer_loading"):
        raise Problem(400, f"{place}.defer_loading: tools are not searched for here: leave it out")
    if (callers := given.get("allowed_callers", DIRECT)) != DIRECT:
        raise Problem(
            400,
            f"{place}.allowed_callers is {shown(callers)}, and no code runs here that could call "
            "tools; expected ['direct'], or leave it out",
            "invalid_value",
            place,
        )
    schema = given.get("input_schema")
    kind = schema.get("type", "object") if isinstance(schema, dict) else None
    if kind != "object":
        raise Problem(
            400,
            f"{place}.input_schema is {shown(schema)}; expected a JSON schema of an object",
            "invalid_value",
            place,
        )
    described = {"description": given["description"]} if "description" in given else {}
    function = {"name": given.get("name"), **described, "parameters": schema}
    return {"type": "function", "function": function}


def _tool_choice(fields: PromptFields) -> str | dict[str, Any]:
    choice = fields.tool_choice
    if choice.type in ("any", "tool") and not fields.tools:
        raise Problem(
            400,
            f"tool_choice is of type {choice.type!r}, and there are no tools to call: leave it out",
            "invalid_value",
            "tool_choice",
        )
    if (choice.type == "tool") != (choice.name is not None):
        raise Problem(
            400,
            f"tool_choice is of type {choice.type!r} with the name {shown(choice.name)}; type "
            "'tool' and no other has one",
            "invalid_value",
            "tool_choice",
        )
    if choice.type == "tool":
        return {"type": "function", "function": {"name": choice.name}}
    return CHOICES[choice.type]


def _check_calls(fields: PromptFields) -> None:
    """Makes sure that a single call can be promised."""
    if fields.tools and fields.tool_choice.type == "auto":
        raise Problem(
            400,
            "tool_choice.disable_parallel_tool_use: a model that may call tools calls as many as "
            "it likes: leave it out, or have it call one by type 'any' or 'tool', or say by a "
            "schema what it may answer instead",
            "invalid_value",
            "tool_choice",
        )


def _check_edits(edits: Sequence[Mapping[str, Any]]) -> None:
    """Makes sure that nothing of a conversation is to be left out."""
    for edit in edits:
        if edit != KEEPS_THOUGHTS:
            raise Problem(
                400,
                f"context_management.edits has {shown(edit)}, and conversations are taken as they "
                "are here: leave it out",
                "invalid_value",
                "context_management.edits",
            )


def _length(fields: MessageFields, sampling: Mapping[str, Any]) -> dict[str, Sent]:
    """How long replies may be, and the thoughts among them."""
    length = {"max_tokens": Sent(fields.max_tokens, "max_tokens")}
    thinking = fields.thinking
    if thinking is None:
        return length
    if "thinking_budget" in sampling and thinking.type != "adaptive":
        raise Problem(400, "thinking and thinking_budget are both given: leave one out")
    budget, most, place = thinking.budget_tokens, fields.max_tokens, "thinking.budget_tokens"
    if budget is None:
        return length
    reason = ""
    if thinking.type != "enabled":
        reason = f"and thinking.type {thinking.type!r}; it is for 'enabled'"
    elif isinstance(budget, int) and isinstance(most, int) and budget >= most > 0:
        reason = f"and max_tokens {most}, in which thoughts count; expected less"
    if reason:
        raise Problem(400, f"{place} is {shown(budget)}, {reason}", "invalid_value", place)
    return {**length, "thinking_budget": Sent(budget, place)}


def _stops(fields: MessageFields, sampling: Mapping[str, Any]) -> dict[str, Sent]:
    if fields.stop_sequences is None:
        return {}
    if "stop" in sampling:
        raise Problem(400, "stop and stop_sequences are both given: leave one out")
    return {"stop": Sent(fields.stop_sequences, "stop_sequences")}


def _texts(stop: Any) -> tuple[str, ...]:
    """Stop texts, which may be one or several; the library refuses what is neither."""
    return (stop,) if isinstance(stop, str) else tuple(stop) if isinstance(stop, list) else ()


def _schema(fields: MessageFields, sampling: Mapping[str, Any]) -> dict[str, Sent]:
    forms = {
        "output_config.format": fields.output_config.format,
        "output_format": fields.output_format,
    }
    given = {place: Sent(form.schema, f"{place}.schema") for place, form in forms.items() if form}
    if len(given) + ("json_schema" in sampling) > 1:
        raise Problem(400, f"{next(iter(given))} and another schema are given: leave one out")
    return {"json_schema": next(iter(given.values()))} if given else {}
