"""A list of Python's calls between two tokens: LFM2."""

from collections.abc import Sequence

from edgerun.model.chat.tools.form import CallForm, Written
from edgerun.model.chat.tools.functions import Functions
from edgerun.model.chat.tools.incoming import PYTHON_QUOTES, Incoming, Reading
from edgerun.model.chat.tools.literals import read_expressions, write_expression


class Lfm2(CallForm):
    """``<|tool_call_start|>[f(x="value")]<|tool_call_end|>``."""

    openings = ("<|tool_call_start|>",)
    markers = ("<|tool_call_end|>",)

    def read(self, text: Incoming, functions: Functions) -> Reading[list[Written]]:
        yield from text.expect("<|tool_call_start|>")
        listed = yield from text.brackets(PYTHON_QUOTES, escapes=True)
        yield from text.close("<|tool_call_end|>")
        calls = read_expressions(text.markers.spelled(listed)[1:-1])
        return [Written(*call) for call in calls]

    def write(self, calls: Sequence[Written]) -> str:
        listed = ", ".join(write_expression(call.name, call.arguments) for call in calls)
        return f"<|tool_call_start|>[{listed}]<|tool_call_end|>"


FORM = Lfm2()
