"""A JSON list, or objects, in ``<tool_calls>``: Apriel, MiniMax M1."""

from edgerun.model.chat.tools.form import CallShape, JsonForm


class ToolCalls(JsonForm):
    """``<tool_calls>[{"name": "f", "arguments": {}}]</tool_calls>``."""

    openings = ("<tool_calls>",)
    closing = "</tool_calls>"
    markers = ("</tool_calls>",)
    shape = CallShape(
        before="<tool_calls>[",
        name='{"name": "',
        arguments='", "arguments": ',
        end="}",
        between=", ",
        after="]</tool_calls>",
    )


FORM = ToolCalls()
