"""Arguments as pairs of keys and values: GLM 4.5 to 4.7, Laguna."""

from collections.abc import Sequence
from typing import Any

from edgerun.model.chat.tools.form import CallForm, Written, plain
from edgerun.model.chat.tools.functions import Functions
from edgerun.model.chat.tools.incoming import Incoming, Reading


class Glm(CallForm):
    """``<tool_call>f<arg_key>x</arg_key><arg_value>value</arg_value></tool_call>``."""

    openings = ("<tool_call>",)
    has_escapes = False
    markers = ("</tool_call>", "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>")

    def read(self, text: Incoming, functions: Functions) -> Reading[list[Written]]:
        yield from text.expect("<tool_call>")
        name = yield from text.name()
        arguments: dict[str, Any] = {}
        while (yield from text.comes("<arg_key>")):
            key = yield from text.until("</arg_key>")
            yield from text.expect("<arg_value>")
            value = yield from text.value("</arg_value>", "<arg_key>", "</tool_call>")
            arguments[key] = functions.value(name, key, value)
        yield from text.expect("</tool_call>")
        return [Written(name, arguments)]

    def write(self, calls: Sequence[Written]) -> str:
        return "\n".join(map(_written, calls))


def _written(call: Written) -> str:
    values = "".join(
        f"<arg_key>{name}</arg_key>\n<arg_value>{plain(value)}</arg_value>\n"
        for name, value in call.arguments.items()
    )
    return f"<tool_call>{call.name}\n{values}</tool_call>"


FORM = Glm()
