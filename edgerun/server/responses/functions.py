"""Functions of a response: some lie in namespaces, which models know nothing of."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from edgerun.model.chat.conversation import joined
from edgerun.server.problems import Problem
from edgerun.values import shown

FUNCTION, NAMESPACE = "function", "namespace"
SEPARATOR = "__"  # as tools of MCP servers are named; a dot has a meaning in some templates


@dataclass(frozen=True)
class Functions:
    """Functions under the names that a model reads.

    Attributes:
        tools: as chats have them; None where nothing was said of any.
        parts: namespace and name of those that lie in a namespace, by the name that is read.
        fields: where each of ``tools`` stands in the request.
    """

    tools: list[dict[str, Any]] | None
    parts: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    fields: Sequence[str] = ()

    def own_name(self, name: str) -> dict[str, str]:
        """How a call names the function that a model calls so."""
        if name not in self.parts:
            return {"name": name}
        namespace, own = self.parts[name]
        return {"name": own, "namespace": namespace}


def functions_of(tools: Sequence[Mapping[str, Any]] | None) -> Functions:
    """The functions of ``tools``, those within namespaces among them.

    Raises:
        Problem: one is something else, which cannot be called here.
    """
    if tools is None:
        return Functions(None)
    flat: list[dict[str, Any]] = []
    parts: dict[str, tuple[str, str]] = {}
    fields: list[str] = []
    for place, namespace, tool in _all(tools):
        function = {key: tool[key] for key in tool if key != "type"}
        if namespace is not None and isinstance(tool.get("name"), str):
            function["name"] = read_name(namespace, tool["name"])
            parts[function["name"]] = (namespace, tool["name"])
        flat.append({"type": FUNCTION, FUNCTION: function})
        fields.append(place)
    return Functions(flat, parts, fields)


def read_name(namespace: str | None, name: str) -> str:
    """The name that a model reads for a function."""
    return f"{namespace}{SEPARATOR}{name}" if namespace else name


def _all(
    tools: Sequence[Mapping[str, Any]],
) -> Iterator[tuple[str, str | None, Mapping[str, Any]]]:
    """Every function: its place, its namespace if it has one, and the function."""
    for index, tool in enumerate(tools):
        place = f"tools[{index}]"
        if tool.get("type") != NAMESPACE:
            yield place, None, _function(tool, place)
            continue
        namespace, members = tool.get("name"), tool.get("tools")
        if not isinstance(namespace, str) or not namespace:
            raise _wrong(f"{place}.name is {shown(namespace)}; expected the namespace's name")
        if not isinstance(members, list):
            raise _wrong(f"{place}.tools is {shown(members)}; expected a list of functions")
        for within, member in enumerate(members):
            inner = f"{place}.tools[{within}]"
            function = _function(member, inner)
            yield inner, namespace, function if within else _introduced(tool, function)


def _introduced(namespace: Mapping[str, Any], function: Mapping[str, Any]) -> Mapping[str, Any]:
    """The first function of a namespace, with what is said of all of them before its own text."""
    texts = [each.get("description") for each in (namespace, function)]
    said = joined(text for text in texts if isinstance(text, str))
    return {**function, "description": said} if said else function


def _function(tool: Any, place: str) -> Mapping[str, Any]:
    if isinstance(tool, dict) and tool.get("type") == FUNCTION:
        return tool
    kind = tool.get("type") if isinstance(tool, dict) else tool
    raise _wrong(
        f"{place} is of type {shown(kind)}; only functions can be called here: leave it out"
    )


def _wrong(message: str) -> Problem:
    return Problem(400, message, "invalid_value", "tools")
