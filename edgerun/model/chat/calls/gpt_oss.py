"""Messages to functions in the channel of commentary: gpt-oss (OpenAI's harmony format)."""

from edgerun.model.chat.tools.form import CallForm, CallShape, Written
from edgerun.model.chat.tools.functions import Functions
from edgerun.model.chat.tools.incoming import Incoming, Reading

START, CHANNEL = "<|start|>assistant", "<|channel|>commentary"
THINKING = "<|channel|>analysis"  # where models call now and then, though they should not
TO = " to=functions."


class GptOss(CallForm):
    """``<|channel|>commentary to=functions.f <|constrain|>json<|message|>{}<|call|>``.

    The function may stand before the channel as well.
    """

    openings = (
        *(START + CHANNEL + TO, START + THINKING + TO, START + TO),
        *(CHANNEL + TO, THINKING + TO),
    )
    opens_reply = TO
    markers = ("<|constrain|>", "<|message|>", "<|call|>")
    shape = CallShape(
        before="",
        name=CHANNEL + TO,
        arguments=" <|constrain|>json<|message|>",
        end="",
        between=None,
        after="",
    )

    def read(self, text: Incoming, functions: Functions) -> Reading[list[Written]]:
        yield from text.comes(START)
        yield from text.comes_any(CHANNEL, THINKING)
        yield from text.expect(TO.strip())
        name = yield from text.name()
        yield from text.until("<|message|>")
        arguments = yield from text.object()
        yield from text.follows("<|call|>")
        return [Written(name, arguments)]


FORM = GptOss()
