r"""How JSON of a schema is spelled: without spaces, and names in one way alone where that counts.

Where an object has names and may have others, llguidance (1.9) takes a name with an escape for one
of the others: ``{"role": "user", "\u0072ole": 7}`` would follow a schema that says of ``role`` that
it is a text, and readers take the last value. So strings have no escapes by number there. Control
characters can be spelled in no other way, but for those that have a letter: a schema that holds one
keeps these escapes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

COMPACT = {"whitespace_flexible": False}
BY_LETTER = {"json_allowed_escapes": 'nrbtf\\"'}
NAMED = ("properties", "patternProperties")
# As JSON writes it, or an expression in JSON.
CONTROL = re.compile(r"\\(?:u00|x)(?:[01][0-9a-f]|7f)", re.IGNORECASE)


def with_spelling(schema: Any) -> Any:
    """The same schema, with what llguidance is told of the spelling of its values.

    Args:
        schema: as JSON has it; what it says itself (``x-guidance``) counts.
    """
    if not isinstance(schema, Mapping):
        return schema
    asked = schema.get("x-guidance", {})
    if not isinstance(asked, Mapping):  # which llguidance refuses
        return schema
    is_free = not _has_open_names(schema) or CONTROL.search(json.dumps(schema))
    options = COMPACT if is_free else {**COMPACT, **BY_LETTER}
    return {**schema, "x-guidance": {**options, **asked}}


def _has_open_names(schema: Any) -> bool:
    """Whether an object in a schema has names, and may have others."""
    pending = [schema]
    while pending:
        part = pending.pop()
        if isinstance(part, Mapping):
            is_open = part.get("additionalProperties") is not False
            if is_open and any(part.get(key) for key in NAMED):
                return True
            pending += part.values()
        elif isinstance(part, list):
            pending += part
    return False
