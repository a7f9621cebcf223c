"""A JSON list behind ``[TOOL_CALLS]``: Mistral's models up to Small 3.1."""

from edgerun.model.chat.tools.form import CallShape, JsonForm


class Mistral(JsonForm):
    """``[TOOL_CALLS][{"name": "f", "arguments": {}}]``."""

    openings = ("[TOOL_CALLS]",)
    shape = CallShape(
        before="[TOOL_CALLS][",
        name='{"name": "',
        arguments='", "arguments": ',
        end="}",
        between=", ",
        after="]",
    )


FORM = Mistral()
