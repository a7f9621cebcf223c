"""A JSON object in ``<tool_call>``: Hermes, Qwen 2.5 and 3, Granite 4, Falcon H1, EXAONE 4."""

from edgerun.model.chat.tools.form import CallShape, JsonForm


class Hermes(JsonForm):
    """``<tool_call>{"name": "f", "arguments": {}}</tool_call>``."""

    openings = ("<tool_call>",)
    closing = "</tool_call>"
    markers = ("</tool_call>",)
    shape = CallShape(
        before="",
        name='<tool_call>\n{"name": "',
        arguments='", "arguments": ',
        end="}\n</tool_call>",
        between="\n",
        after="",
    )


FORM = Hermes()
