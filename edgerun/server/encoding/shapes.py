"""What replies have to look like, as far as it says what they may take."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any, NamedTuple

from edgerun.engine.constraints.kinds import MAX_BYTES
from edgerun.engine.sampling.structure import Structure
from edgerun.llm.tools import AUTO, NONE

CALL_GROWTH = 3  # of a grammar of calls, over the text of the functions that it is made of


class Shape(NamedTuple):
    """A form that the replies of a request follow.

    Attributes:
        digest: of the form and of how many replies follow it.
        size_bytes: of its text, of calls about that of their grammar; what has more than there may
            be is refused later.
    """

    digest: bytes
    size_bytes: int


def shape_of(
    sampling: Mapping[str, Any],
    count: int,
    tools: object = None,
    tool_choice: object = AUTO,
    *,
    several: bool = True,
) -> Shape | None:
    """The form that a request asks for; None for none.

    Args:
        sampling: options, as JSON has them.
        count: replies.
        tools: functions that may be called; they have a form where they have to be, and where
            there is one for what is said instead.
        tool_choice: which of them has to be.
        several: whether a reply may call more than once.
    """
    forms = [sampling.get(entry.name) for entry in Structure.options()]
    has_form = any(form is not None for form in forms)
    has_calls = bool(tools) and tool_choice != NONE and (has_form or tool_choice != AUTO)
    if has_calls:
        forms += [tools, tool_choice, several]
    elif not has_form:
        return None
    try:
        text = json.dumps([count, *forms]).encode()
    except (ValueError, RecursionError):  # numbers or lists that are refused later
        text = b""
    size_bytes = len(text) * (CALL_GROWTH if has_calls else 1)
    return Shape(hashlib.sha256(text).digest(), min(size_bytes, MAX_BYTES))
