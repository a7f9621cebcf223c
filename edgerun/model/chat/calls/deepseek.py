"""Calls between tokens of their own: DeepSeek V3 and R1, and V3.1, which has less around them."""

from collections.abc import Sequence

from edgerun.model.chat.tools.form import CallForm, Written
from edgerun.model.chat.tools.functions import Functions
from edgerun.model.chat.tools.incoming import Incoming, Reading
from edgerun.model.chat.tools.values import write_json

CALLS, CALLS_END = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"
CALL, CALL_END, BETWEEN = "<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>", "<｜tool▁sep｜>"


class DeepSeek(CallForm):
    """``begin f sep {} end``, or ``begin function sep f`` and the arguments as a block of code."""

    openings = (CALLS, CALL)
    markers = (CALLS_END, CALL_END, BETWEEN)

    def read(self, text: Incoming, functions: Functions) -> Reading[list[Written]]:
        yield from text.comes(CALLS)
        calls = [(yield from self._call(text))]
        while not (yield from text.comes(CALLS_END)) and not text.is_over:
            calls.append((yield from self._call(text)))
        return calls

    def _call(self, text: Incoming) -> Reading[Written]:
        yield from text.expect(CALL)
        name = (yield from text.until(BETWEEN)).strip()
        yield from text.spaces()
        is_code = (yield from text.ahead(1)) != "{"
        if is_code:
            name = yield from text.name()
            yield from text.expect("```json")
        arguments = yield from text.object()
        if is_code:
            yield from text.expect("```")
        yield from text.close(CALL_END)
        return Written(name, arguments)

    def write(self, calls: Sequence[Written]) -> str:
        written = [f"{CALL}{c.name}{BETWEEN}{write_json(c.arguments)}{CALL_END}" for c in calls]
        return CALLS + "".join(written) + CALLS_END


FORM = DeepSeek()
