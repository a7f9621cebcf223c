"""Arguments between braces, strings between tokens of their own: Gemma 4."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from edgerun.model.chat.tools.form import CallForm, Written
from edgerun.model.chat.tools.functions import Functions
from edgerun.model.chat.tools.incoming import Incoming, Reading
from edgerun.model.chat.tools.literals import Literals
from edgerun.model.chat.tools.values import write_json

QUOTE = '<|"|>'


class Gemma4(CallForm):
    """``<|tool_call>call:f{x:<|"|>value<|"|>,n:1}<tool_call|>``."""

    openings = ("<|tool_call>",)
    has_escapes = False
    markers = ("<tool_call|>", QUOTE)

    def read(self, text: Incoming, functions: Functions) -> Reading[list[Written]]:
        yield from text.expect("<|tool_call>")
        yield from text.expect("call:")
        name = yield from text.name()
        braces = yield from text.brackets((QUOTE,), escapes=False)
        yield from text.close("<tool_call|>")
        quote = re.escape(text.coded(QUOTE))
        literals = Literals(
            braces,
            re.compile(f"{quote}(.*?){quote}", re.DOTALL),
            lambda match: text.markers.spelled(match[1]),
        )
        literals.expect("{")
        return [Written(name, literals.mapping())]

    def write(self, calls: Sequence[Written]) -> str:
        return "".join(
            f"<|tool_call>call:{call.name}{_braces(call.arguments)}<tool_call|>" for call in calls
        )


def _braces(values: Mapping[str, Any]) -> str:
    return "{" + ",".join(f"{name}:{_value(value)}" for name, value in values.items()) + "}"


def _value(value: Any) -> str:
    if isinstance(value, str):
        return f"{QUOTE}{value}{QUOTE}"
    if isinstance(value, Mapping):
        return _braces(value)
    if isinstance(value, list):
        return f"[{','.join(map(_value, value))}]"
    return write_json(value)


FORM = Gemma4()
