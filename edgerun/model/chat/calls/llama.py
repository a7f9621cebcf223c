"""A JSON object that is the reply, maybe behind ``<|python_tag|>``: Llama 3.1 to 3.3."""

import re

from edgerun.model.chat.tools.form import CallForm, CallShape, Written, written_calls
from edgerun.model.chat.tools.functions import Functions
from edgerun.model.chat.tools.incoming import Incoming, Reading
from edgerun.model.chat.tools.values import UnreadableError

# With another first key an object is no call, and a reply need not wait for its end.
START = re.compile(r'\{\s*"(?:name|type|function|id|parameters|arguments)"')
MOST = 24


class Llama(CallForm):
    """``{"name": "f", "parameters": {}}``, and others behind semicolons."""

    openings = ("<|python_tag|>",)
    opens_reply = "{"
    shape = CallShape(
        before="",
        name='{"name": "',
        arguments='", "parameters": ',
        end="}",
        between="; ",
        after="",
    )

    def read(self, text: Incoming, functions: Functions) -> Reading[list[Written]]:
        if (yield from text.comes("<|python_tag|>")):
            yield from text.spaces()
        calls: list[Written] = []
        while not calls or (yield from text.follows(";")):
            yield from text.spaces()
            if not START.match((yield from text.ahead(MOST))):
                raise UnreadableError("no call")
            calls += written_calls((yield from text.json()))
        return calls


FORM = Llama()
