"""Grammars of replies that call a function and say nothing else, in llguidance's form of Lark."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from edgerun.model.chat.tools.form import CallShape
from edgerun.model.chat.tools.markers import Markers

COMPACT = {"x-guidance": {"whitespace_flexible": False}}


def argument_schema(schema: Mapping[str, Any]) -> dict[str, Any]:
    """What the arguments of a function look like: an object in any case, without spaces."""
    return {**COMPACT, **schema, "type": "object"}


def grammar_of_calls(
    shape: CallShape, schemas: Mapping[str, Mapping[str, Any]], markers: Markers, *, several: bool
) -> str:
    """Writes the grammar of a reply that calls one of some functions.

    Args:
        shape: how calls are written.
        schemas: of the arguments, by the names of the functions.
        markers: control tokens that take part.
        several: whether more calls may follow the first.
    """
    ids = {character: id_ for id_, character in markers.characters.items()}

    def terminals(text: str) -> Iterable[str]:
        run = ""
        for character in markers.coded(text):
            if character not in ids:
                run += character
                continue
            yield from (json.dumps(run, ensure_ascii=False),) if run else ()
            yield f"<[{ids[character]}]>"
            run = ""
        yield from (json.dumps(run, ensure_ascii=False),) if run else ()

    def rule(*parts: str) -> str:
        return " ".join(part for part in parts if part)

    before, name, arguments, end, between, after = (
        " ".join(terminals(text or "")) for text in shape
    )
    more = f"({rule(between, 'call')})*" if several and shape.between is not None else ""
    calls = " | ".join(
        rule(*terminals(function), arguments, f"arguments_{index}")
        for index, function in enumerate(schemas)
    )
    rules = [
        f"start: {rule(before, 'call', more, after)}",
        f"call: {rule(name, f'({calls})', end)}",
        *(
            f"arguments_{index}: %json {json.dumps(argument_schema(schema))}"
            for index, schema in enumerate(schemas.values())
        ),
    ]
    return "\n".join(rules)
