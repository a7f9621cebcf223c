"""Arguments as elements: Qwen3-Coder, Qwen3.5, Nemotron 3, Seed-OSS."""

from collections.abc import Sequence
from typing import Any

from edgerun.model.chat.tools.form import CallForm, Written, plain
from edgerun.model.chat.tools.functions import Functions
from edgerun.model.chat.tools.incoming import Incoming, Reading

TAGS = {"<tool_call>": "</tool_call>", "<seed:tool_call>": "</seed:tool_call>"}


class QwenXml(CallForm):
    """``<tool_call><function=f><parameter=x>value</parameter></function></tool_call>``.

    Values have no quotes: what they are is said by the schema of the function.
    """

    openings = ("<tool_call>", "<seed:tool_call>", "<function=")
    has_escapes = False
    markers = (
        "</tool_call>",
        "</seed:tool_call>",
        "</function>",
        "<parameter=",
        "</parameter>",
    )

    def read(self, text: Incoming, functions: Functions) -> Reading[list[Written]]:
        opening = yield from text.comes_any(*TAGS)
        closing = TAGS.get(opening, "")
        has_lines = opening != "<seed:tool_call>"
        calls = [(yield from self._function(text, functions, has_lines=has_lines))]
        while closing and not (yield from text.comes(closing)) and not text.is_over:
            calls.append((yield from self._function(text, functions, has_lines=has_lines)))
        return calls

    def _function(
        self, text: Incoming, functions: Functions, *, has_lines: bool
    ) -> Reading[Written]:
        yield from text.expect("<function=")
        name = yield from text.name()
        yield from text.expect(">")
        arguments: dict[str, Any] = {}
        while (yield from text.comes("<parameter=")):
            parameter = yield from text.until(">")
            value = yield from text.value("</parameter>", "<parameter=", "</function>")
            if has_lines:
                value = value.removeprefix("\n").removesuffix("\n")
            arguments[parameter] = functions.value(name, parameter, value)
        yield from text.expect("</function>")
        return Written(name, arguments)

    def write(self, calls: Sequence[Written]) -> str:
        return "\n".join(map(_written, calls))


def _written(call: Written) -> str:
    values = "".join(
        f"<parameter={name}>\n{plain(value)}\n</parameter>\n"
        for name, value in call.arguments.items()
    )
    return f"<tool_call>\n<function={call.name}>\n{values}</function>\n</tool_call>"


FORM = QwenXml()
