"""A name and arguments behind an arrow: ``=> f {}``."""

from edgerun.model.chat.tools.form import CallForm, CallShape, Written
from edgerun.model.chat.tools.functions import Functions
from edgerun.model.chat.tools.incoming import Incoming, Reading


class Arrow(CallForm):
    """``=> f {"x": 1}``, a line for each call."""

    openings = ("=> ",)
    shape = CallShape(before="", name="=> ", arguments=" ", end="", between="\n", after="")

    def read(self, text: Incoming, functions: Functions) -> Reading[list[Written]]:
        yield from text.expect("=> ")
        name = yield from text.name()
        return [Written(name, (yield from text.object()))]


FORM = Arrow()
