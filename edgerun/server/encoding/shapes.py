"""What replies have to look like, as far as it says what they may take."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any, NamedTuple

from edgerun.engine.constraints.kinds import MAX_BYTES
from edgerun.engine.sampling.structure import Structure
from edgerun.llm.tools import AUTO, NONE


class Shape(NamedTuple):
    """A form that the replies of a request follow.

    Attributes:
        digest: of the form and of how many replies follow it.
        size_bytes: of its text; what has more than there may be is refused later.
    """

    digest: bytes
    size_bytes: int


def shape_of(
    sampling: Mapping[str, Any], count: int, tools: object = None, tool_choice: object = AUTO
) -> Shape | None:
    """The form that a request asks for; None for none.

    Args:
        sampling: options, as JSON has them.
        count: replies.
        tools: functions that may be called.
        tool_choice: which of them has to be.
    """
    forms = [sampling.get(entry.name) for entry in Structure.options()]
    if tools and tool_choice not in (AUTO, NONE):
        forms += [tools, tool_choice]
    if all(form is None for form in forms):
        return None
    try:
        text = json.dumps([count, *forms]).encode()
    except (ValueError, RecursionError):  # numbers or lists that are refused later
        text = b""
    return Shape(hashlib.sha256(text).digest(), min(len(text), MAX_BYTES))
