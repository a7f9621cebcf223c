"""A JSON list between ``<|START_ACTION|>`` and its end: Command R7B and Command A."""

from collections.abc import Sequence

from edgerun.model.chat.tools.form import CallShape, JsonForm, Written
from edgerun.model.chat.tools.values import write_json


class Cohere(JsonForm):
    """``<|START_ACTION|>[{"tool_name": "f", "parameters": {}}]<|END_ACTION|>``, with ids."""

    openings = ("<|START_ACTION|>",)
    closing = "<|END_ACTION|>"
    markers = ("<|END_ACTION|>",)
    name_key = "tool_name"
    shape = CallShape(
        before="<|START_ACTION|>[\n    ",
        name='{"tool_call_id": "0", "tool_name": "',
        arguments='", "parameters": ',
        end="}",
        between=None,  # for ids of calls count up
        after="\n]<|END_ACTION|>",
    )

    def write(self, calls: Sequence[Written]) -> str:
        written = [
            f'{{"tool_call_id": "{index}", "tool_name": "{call.name}", '
            f'"parameters": {write_json(call.arguments)}}}'
            for index, call in enumerate(calls)
        ]
        return "<|START_ACTION|>[\n    " + ",\n    ".join(written) + "\n]<|END_ACTION|>"


FORM = Cohere()
