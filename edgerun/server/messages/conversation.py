"""Turns and blocks become messages as chat templates know them."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any, NamedTuple

from edgerun.model.chat.conversation import SYSTEM, joined
from edgerun.server.problems import Problem
from edgerun.values import shown, suggestion

USER, ASSISTANT = "user", "assistant"
TEXT, THINKING, TOOL_USE = "text", "thinking", "tool_use"
REDACTED, TOOL_RESULT = "redacted_thinking", "tool_result"
KINDS = {  # of the blocks that a role has
    SYSTEM: (TEXT,),
    USER: (TEXT, TOOL_RESULT),
    ASSISTANT: (TEXT, THINKING, REDACTED, TOOL_USE),
}
FIELDS = {  # of blocks, by type
    TEXT: ("text", "citations"),
    THINKING: ("thinking", "signature"),
    REDACTED: ("data",),
    TOOL_USE: ("id", "name", "input", "caller", "toolset_name"),
    TOOL_RESULT: ("tool_use_id", "content", "is_error", "toolset_name"),
}
COMMON = ("type", "cache_control")  # fields of all blocks
# What Claude Code begins its system blocks with is for who sends bills, and differs each time: no
# prompt would go on from the one before.
BILLING = "x-anthropic-billing-header:"


class Block(NamedTuple):
    """A checked block.

    Attributes:
        role: of who says it.
        place: of it in the body.
        fields: of it.
    """

    role: str
    place: str
    fields: Mapping[str, Any]

    def text(self, name: str) -> str:
        """A field that is a text.

        Raises:
            Problem: it is none.
        """
        value = self.fields.get(name)
        if not isinstance(value, str):
            raise _invalid(f"{self.place}.{name}", value, "a text")
        return value


class Conversation(NamedTuple):
    """What is to be answered.

    Attributes:
        messages: as chat templates know them.
        beginning: of the answer, which goes on with it; often ``""``.
    """

    messages: list[dict[str, Any]]
    beginning: str


def conversation_of(
    messages: Sequence[Mapping[str, Any]], system: str | Sequence[Any] | None
) -> Conversation:
    """The conversation that a system text and messages are.

    Messages of one role behind one another are one turn, and the system text is the first. Results
    of tools stand before what the user says in the same turn. Where the assistant has the last
    turn, that is the beginning of the answer.

    Raises:
        Problem: a message or a block is unusable.
    """
    if not messages:
        raise Problem(
            400, "messages is empty; expected at least one message", "invalid_value", "messages"
        )
    said = [] if system is None else [*_blocks(SYSTEM, system, "system")]
    said = [block for block in said if not block.text("text").startswith(BILLING)]
    for index, message in enumerate(messages):
        said += _message_blocks(message, f"messages[{index}]")
    conversation: list[dict[str, Any]] = []
    called: frozenset[str] = frozenset()
    blocks: list[Block] = []
    for role, turn in groupby(said, lambda block: block.role):
        blocks = [*turn]
        if role == SYSTEM:
            conversation.append({"role": SYSTEM, "content": _said(blocks)})
        elif role == USER:
            conversation += _user(blocks, called)
            called = frozenset()
        else:
            conversation.append(_assistant(blocks))
            called = frozenset(each.text("id") for each in blocks if _is(each, TOOL_USE))
    if conversation[-1]["role"] != ASSISTANT:
        return Conversation(conversation, "")
    for block in blocks:
        if not _is(block, TEXT):
            raise Problem(
                400,
                f"{block.place} is a block of type {shown(block.fields['type'])} in the last "
                "message, with which a reply is to go on; expected text alone",
                "invalid_value",
                block.place,
            )
    if len(conversation) == 1:
        raise Problem(
            400,
            "messages holds no more than the beginning of a reply; expected a message of the user "
            "before it",
            "invalid_value",
            "messages",
        )
    return Conversation(conversation[:-1], conversation[-1]["content"])


def check_fields(fields: Mapping[str, Any], names: Collection[str], place: str) -> None:
    """Makes sure that an object has no others than these.

    Raises:
        Problem: it has.
    """
    for name in fields:
        if name not in names:
            near = suggestion(name, sorted(names))
            raise Problem(400, f"{place} has no field {shown(name)}{near}", "unknown_field", place)


def _message_blocks(message: Mapping[str, Any], place: str) -> list[Block]:
    """The blocks of a message, at least one."""
    check_fields(message, ("role", "content"), place)
    role = message.get("role")
    if not isinstance(role, str) or role not in KINDS:
        raise _invalid(f"{place}.role", role, "user, assistant or system")
    place = f"{place}.content"
    empty = Block(role, place, {"type": TEXT, "text": ""})
    return [*_blocks(role, message.get("content"), place)] or [empty]


def _blocks(
    role: str, content: Any, place: str, kinds: Collection[str] | None = None
) -> Iterator[Block]:
    """Blocks of some kinds, those of the role if they are not said; a text is a block, too."""
    kinds = kinds or KINDS[role]
    if isinstance(content, str):
        yield Block(role, place, {"type": TEXT, "text": content})
        return
    if not isinstance(content, list):
        raise _invalid(place, content, "a text or a list of blocks")
    for index, fields in enumerate(content):
        where = f"{place}[{index}]"
        kind = fields.get("type") if isinstance(fields, dict) else None
        if not isinstance(kind, str) or kind not in kinds:
            described = f"of type {shown(kind)}" if isinstance(kind, str) else shown(fields)
            raise Problem(
                400,
                f"{where} is {described}; expected {' or '.join(kinds)}: models here read text "
                "only",
                "invalid_value",
                where,
            )
        check_fields(fields, (*COMMON, *FIELDS[kind]), where)
        yield Block(
            role, where, {name: fields[name] for name in fields if fields[name] is not None}
        )


def _is(block: Block, kind: str) -> bool:
    return bool(block.fields["type"] == kind)


def _said(blocks: Sequence[Block]) -> str:
    """The texts among blocks, each in lines of its own."""
    return "\n".join(block.text("text") for block in blocks if _is(block, TEXT))


def _user(blocks: Sequence[Block], called: Collection[str]) -> Iterator[dict[str, Any]]:
    """Results of what was called in the turn before, and what the user says."""
    results = [block for block in blocks if _is(block, TOOL_RESULT)]
    for block in results:
        if (id_ := block.text("tool_use_id")) not in called:
            raise Problem(
                400,
                f"{block.place} is the result of {shown(id_)}, which no tool_use of the turn "
                "before it has as its id: send both, or leave it out",
                "invalid_value",
                block.place,
            )
        yield {"role": "tool", "tool_call_id": id_, "content": _result(block)}
    if len(results) < len(blocks):
        yield {"role": USER, "content": _said(blocks)}


def _result(block: Block) -> str:
    """What a tool returned; templates have no other place for its failure."""
    content = block.fields.get("content", "")
    text = _said([*_blocks(USER, content, f"{block.place}.content", (TEXT,))])
    is_error = block.fields.get("is_error", False)
    if not isinstance(is_error, bool):
        raise _invalid(f"{block.place}.is_error", is_error, "true or false")
    return f"Error: {text}" if is_error else text


def _assistant(blocks: Sequence[Block]) -> dict[str, Any]:
    message: dict[str, Any] = {"role": ASSISTANT, "content": _said(blocks)}
    thoughts = joined(block.text("thinking") for block in blocks if _is(block, THINKING))
    calls = [_call(block) for block in blocks if _is(block, TOOL_USE)]
    if thoughts:
        message["reasoning_content"] = thoughts
    return {**message, "tool_calls": calls} if calls else message


def _call(block: Block) -> dict[str, Any]:
    arguments = block.fields.get("input")
    if not isinstance(arguments, dict):
        raise _invalid(f"{block.place}.input", arguments, "an object")
    function = {"name": block.text("name"), "arguments": arguments}
    return {"id": block.text("id"), "type": "function", "function": function}


def _invalid(place: str, value: Any, expected: str) -> Problem:
    return Problem(400, f"{place} is {shown(value)}; expected {expected}", "invalid_value", place)
