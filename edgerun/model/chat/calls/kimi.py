"""A section of calls, each with an id that holds the name: Kimi K2."""

from collections.abc import Sequence

from edgerun.model.chat.tools.form import CallForm, CallShape, Written
from edgerun.model.chat.tools.functions import Functions
from edgerun.model.chat.tools.incoming import Incoming, Reading
from edgerun.model.chat.tools.values import write_json

SECTION, SECTION_END = "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"
CALL, CALL_END = "<|tool_call_begin|>", "<|tool_call_end|>"
ARGUMENTS = "<|tool_call_argument_begin|>"


class Kimi(CallForm):
    """``section begin functions.f:0 arguments {} end``."""

    openings = (SECTION,)
    markers = (SECTION_END, CALL, CALL_END, ARGUMENTS)
    shape = CallShape(
        before=SECTION,
        name=f"{CALL}functions.",
        arguments=f":0{ARGUMENTS}",
        end=CALL_END,
        between=None,
        after=SECTION_END,
    )

    def read(self, text: Incoming, functions: Functions) -> Reading[list[Written]]:
        yield from text.expect(SECTION)
        calls: list[Written] = []
        while (yield from text.comes(CALL)):
            id_ = (yield from text.until(ARGUMENTS)).strip()
            arguments = yield from text.object()
            yield from text.close(CALL_END)
            name, _, _ = id_.removeprefix("functions.").rpartition(":")
            calls.append(Written(name, arguments))
        yield from text.close(SECTION_END)
        return calls

    def write(self, calls: Sequence[Written]) -> str:
        written = [
            f"{CALL}functions.{call.name}:{index}{ARGUMENTS}{write_json(call.arguments)}{CALL_END}"
            for index, call in enumerate(calls)
        ]
        return SECTION + "".join(written) + SECTION_END


FORM = Kimi()
