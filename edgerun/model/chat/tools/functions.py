"""Functions that a model may call, as OpenAI's API describes them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from edgerun.errors import InputError
from edgerun.model.chat.tools.literals import read_literal
from edgerun.model.chat.tools.values import UnreadableError, depth_of, read_json
from edgerun.values import shown

NAME = re.compile(r"[\w-][\w.-]{0,127}", re.ASCII)
EXPECTED = '{"type": "function", "function": {"name": "...", "parameters": {...}}}'
UNIONS = ("anyOf", "oneOf", "allOf")
TYPES: Mapping[type, str] = {
    str: "string",
    bool: "boolean",
    int: "integer",
    float: "number",
    list: "array",
    dict: "object",
    type(None): "null",
}


class Functions:
    """Functions that a model may call.

    Attributes:
        tools: as they were given, for the chat template.
        schemas: what their arguments look like, by name; an empty one where nothing says it.
    """

    def __init__(self, tools: object) -> None:
        """Checks descriptions of functions.

        Raises:
            InputError: they are no list, one is no such description, or two have the same name.
        """
        if not isinstance(tools, list | tuple):
            raise InputError(f"tools is {shown(tools)}; expected a list such as [{EXPECTED}]")
        self.tools: tuple[Mapping[str, Any], ...] = tuple(tools)
        self.schemas: dict[str, Mapping[str, Any]] = {}
        for index, tool in enumerate(tools):
            name, schema = _described(tool, index)
            if name in self.schemas:
                raise InputError(f"tool {index} is called {name!r}, as another one: rename it")
            self.schemas[name] = schema

    def value(self, function: str, parameter: str, text: str) -> Any:
        """What a text without quotes stands for, by the type that the schema says.

        A string stays what it is. What has another type, or may have one, is read as JSON, or as
        Python writes it; what has none is a string unless it is an object or a list of JSON.
        """
        root = self.schemas.get(function, {})
        types: set[str] = set()
        for part in _parts(root, root):
            properties = part.get("properties")
            schema = properties.get(parameter) if isinstance(properties, Mapping) else None
            types |= _types(schema, root)
        if types == {"string"}:
            return text
        value = _literal(text) if types else _json(text)
        is_of_type = not types or TYPES[type(value)] in types
        is_of_type |= type(value) is int and "number" in types
        return text if "string" in types and not is_of_type else value


def _described(tool: object, index: int) -> tuple[str, Mapping[str, Any]]:
    """The name of a function, and the schema of its arguments."""
    function = tool.get("function") if isinstance(tool, Mapping) else None
    if not isinstance(tool, Mapping) or not isinstance(function, Mapping):
        raise InputError(f"tool {index} is {shown(tool)}; expected {EXPECTED}")
    if tool.get("type") != "function":
        raise InputError(f"tool {index} has type {shown(tool.get('type'))}; expected 'function'")
    name, schema = function.get("name"), function.get("parameters")
    if not isinstance(name, str) or not NAME.fullmatch(name):
        raise InputError(
            f"tool {index} is called {shown(name)}; expected letters, digits, '_', '-' and '.', "
            "at most 128"
        )
    if not isinstance(schema, Mapping | None):
        raise InputError(
            f"tool {index}, {name!r}, has {shown(schema)} as parameters; expected a JSON schema"
        )
    try:
        json.dumps(tool, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise InputError(
            f"tool {index}, {name!r}, holds something that is not JSON: {error}"
        ) from error
    return name, schema or {}


def _types(schema: Any, root: Mapping[str, Any]) -> set[str]:
    """The types that a schema allows, as far as it and what it refers to say so."""
    types: set[str] = set()
    for part in _parts(schema, root):
        kind = part.get("type")
        kinds = kind if isinstance(kind, list) else [kind]
        types |= {each for each in kinds if isinstance(each, str)}
        values = part.get("enum", [])
        constants = [*(values if isinstance(values, list) else []), *_constant(part)]
        types |= {TYPES[type(value)] for value in constants if type(value) in TYPES}
    return types


def _parts(schema: Any, root: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """A schema, those that it is a union of, and those that any of them refers to; each once."""
    pending, seen = [schema], set()
    while pending:
        part = pending.pop()
        if not isinstance(part, Mapping) or id(part) in seen:
            continue
        seen.add(id(part))
        yield part
        pending.append(_target(part.get("$ref"), root))
        for union in UNIONS:
            others = part.get(union)
            pending += others if isinstance(others, list) else []


def _target(reference: Any, root: Mapping[str, Any]) -> Any:
    """What a reference such as ``#/$defs/n`` names (RFC 6901, section 6); None if that is nothing.

    Other documents are not looked for.
    """
    if not isinstance(reference, str) or not reference.startswith("#"):
        return None
    if "%" in reference:
        from urllib.parse import unquote  # rarely needed, and slow to import

        reference = unquote(reference)
    start, *steps = reference.split("/")
    target: Any = root if start == "#" else None
    for step in steps:
        name = step.replace("~1", "/").replace("~0", "~")
        if isinstance(target, list) and re.fullmatch("[0-9]{1,9}", name):
            target = target[int(name)] if int(name) < len(target) else None
        else:
            target = target.get(name) if isinstance(target, Mapping) else None
    return target


def _constant(schema: Mapping[str, Any]) -> list[Any]:
    return [schema["const"]] if "const" in schema else []


def _json(text: str) -> Any:
    try:
        value = read_json(text)
    except UnreadableError:
        return text
    return value if depth_of(value) else text


def _literal(text: str) -> Any:
    for read in (read_json, read_literal):
        try:
            return read(text.strip())
        except UnreadableError:
            pass
    return text
