"""Elements ``invoke`` and ``parameter``: MiniMax M2, DeepSeek V3.2 and V4."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from edgerun.model.chat.tools.form import CallForm, Written, plain
from edgerun.model.chat.tools.functions import Functions
from edgerun.model.chat.tools.incoming import Incoming, Reading
from edgerun.model.chat.tools.values import read_json


class Tags(NamedTuple):
    """How one family calls these elements.

    Attributes:
        calls: the element around all calls.
        prefix: of the names of the others.
    """

    calls: str
    prefix: str


FAMILIES = (
    Tags("minimax:tool_call", ""),
    Tags("｜DSML｜tool_calls", "｜DSML｜"),
    Tags("｜DSML｜function_calls", "｜DSML｜"),
)


class Invoke(CallForm):
    """``<invoke name="f"><parameter name="x">value</parameter></invoke>``, in an element of calls.

    DeepSeek says with each parameter whether it is a string (``string="true"``).
    """

    openings = tuple(f"<{tags.calls}>" for tags in FAMILIES)
    has_escapes = False
    markers = (
        *(f"</{tags.calls}>" for tags in FAMILIES),
        *(f"<{tags.prefix}{name} " for tags in FAMILIES for name in ("invoke", "parameter")),
        *(f"</{tags.prefix}{name}>" for tags in FAMILIES for name in ("invoke", "parameter")),
    )

    def read(self, text: Incoming, functions: Functions) -> Reading[list[Written]]:
        opening = yield from text.comes_any(*self.openings)
        tags = FAMILIES[self.openings.index(opening)]
        calls: list[Written] = []
        while (yield from text.comes(f'<{tags.prefix}invoke name="')):
            calls.append((yield from self._call(text, functions, tags.prefix)))
        yield from text.close(f"</{tags.calls}>")
        return calls

    def _call(self, text: Incoming, functions: Functions, prefix: str) -> Reading[Written]:
        name = yield from text.until('">')
        arguments: dict[str, Any] = {}
        while (yield from text.comes(f'<{prefix}parameter name="')):
            parameter = yield from text.until('"')
            kind = yield from text.until(">")
            value = yield from text.value(
                f"</{prefix}parameter>", f"<{prefix}parameter ", f"</{prefix}invoke>"
            )
            if not kind:
                arguments[parameter] = functions.value(name, parameter, value)
            else:
                arguments[parameter] = value if '"true"' in kind else read_json(value)
        yield from text.expect(f"</{prefix}invoke>")
        return Written(name, arguments)

    def write(self, calls: Sequence[Written]) -> str:
        tag = FAMILIES[0].calls
        return f"<{tag}>\n" + "".join(map(_written, calls)) + f"</{tag}>"


def _written(call: Written) -> str:
    values = "".join(
        f'<parameter name="{name}">{plain(value)}</parameter>\n'
        for name, value in call.arguments.items()
    )
    return f'<invoke name="{call.name}">\n{values}</invoke>\n'


FORM = Invoke()
