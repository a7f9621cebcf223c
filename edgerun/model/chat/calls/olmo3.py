"""Calls as expressions in ``<function_calls>``: OLMo 3."""

from collections.abc import Sequence

from edgerun.model.chat.tools.form import CallForm, Written
from edgerun.model.chat.tools.functions import Functions
from edgerun.model.chat.tools.incoming import PYTHON_QUOTES, Incoming, Reading
from edgerun.model.chat.tools.literals import read_expressions, write_expression


class Olmo3(CallForm):
    """``<function_calls>f(x="value")</function_calls>``, a line for each call."""

    openings = ("<function_calls>",)
    markers = ("</function_calls>",)

    def read(self, text: Incoming, functions: Functions) -> Reading[list[Written]]:
        yield from text.expect("<function_calls>")
        calls = [(yield from self._call(text))]
        while not (yield from text.comes("</function_calls>")) and not text.is_over:
            calls.append((yield from self._call(text)))
        return calls

    def _call(self, text: Incoming) -> Reading[Written]:
        name = yield from text.name()
        arguments = yield from text.brackets(PYTHON_QUOTES, escapes=True)
        ((name, values),) = read_expressions(name + text.markers.spelled(arguments))
        return Written(name, values)

    def write(self, calls: Sequence[Written]) -> str:
        lines = "\n".join(write_expression(call.name, call.arguments) for call in calls)
        return f"<function_calls>{lines}</function_calls>"


FORM = Olmo3()
