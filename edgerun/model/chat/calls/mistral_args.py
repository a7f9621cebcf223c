"""Name and arguments apart, behind ``[TOOL_CALLS]``: Ministral 3, Devstral, Mistral Small 3.2."""

from edgerun.model.chat.tools.form import CallForm, CallShape, Written
from edgerun.model.chat.tools.functions import Functions
from edgerun.model.chat.tools.incoming import Incoming, Reading


class MistralArgs(CallForm):
    """``[TOOL_CALLS]f[ARGS]{}``; between name and arguments some models write the call's id."""

    openings = ("[TOOL_CALLS]",)
    markers = ("[ARGS]", "[CALL_ID]")
    shape = CallShape(
        before="", name="[TOOL_CALLS]", arguments="[ARGS]", end="", between="", after=""
    )

    def read(self, text: Incoming, functions: Functions) -> Reading[list[Written]]:
        yield from text.expect("[TOOL_CALLS]")
        name = yield from text.name()
        if (yield from text.comes("[CALL_ID]")):
            yield from text.name()
        yield from text.expect("[ARGS]")
        arguments = yield from text.object()
        return [Written(name, arguments)]


FORM = MistralArgs()
