"""A JSON list behind ``<|tool_call|>``: Granite 3; Phi-4 mini closes it as well."""

from edgerun.model.chat.tools.form import CallShape, JsonForm, Written
from edgerun.model.chat.tools.functions import Functions
from edgerun.model.chat.tools.incoming import Incoming, Reading


class Granite(JsonForm):
    """``<|tool_call|>[{"name": "f", "arguments": {}}]``."""

    openings = ("<|tool_call|>",)
    markers = ("<|/tool_call|>",)
    shape = CallShape(
        before="<|tool_call|>[",
        name='{"name": "',
        arguments='", "arguments": ',
        end="}",
        between=", ",
        after="]",
    )

    def read(self, text: Incoming, functions: Functions) -> Reading[list[Written]]:
        calls = yield from super().read(text, functions)
        yield from text.follows("<|/tool_call|>")
        return calls


FORM = Granite()
