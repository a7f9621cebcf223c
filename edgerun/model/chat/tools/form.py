"""The contract of a form in which models write calls.

To add a form, write a file with a ``FORM`` into ``edgerun/model/chat/calls``. Which form a model
has is not said anywhere: its chat template writes a call, and the form that reads it is the
model's (``recognition.py``).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

from edgerun.model.chat.tools.functions import Functions
from edgerun.model.chat.tools.incoming import Incoming, Reading
from edgerun.model.chat.tools.values import UnreadableError, write_json


class Written(NamedTuple):
    """A call as it is written.

    Attributes:
        name: of the function.
        arguments: by name.
    """

    name: str
    arguments: Mapping[str, Any]


class CallShape(NamedTuple):
    """Texts around the names and the arguments of calls whose arguments are JSON.

    Attributes:
        before: all calls.
        name: before the name of a function.
        arguments: between the name and the arguments.
        end: behind the arguments.
        between: one call and the next; None where there is never more than one.
        after: all calls.
    """

    before: str
    name: str
    arguments: str
    end: str
    between: str | None
    after: str


class CallForm(ABC):
    """How models write calls.

    Attributes:
        openings: with one of these calls begin.
        markers: what else may be control tokens of a model.
        opens_reply: calls may begin with this as well, at the very beginning of a reply; nothing
            unless given.
        shape: of calls that can be forced by a grammar, and are written; a form without one writes
            calls itself.
        has_escapes: strings in calls have quotes and the escapes of JSON.
    """

    openings: ClassVar[tuple[str, ...]]
    markers: ClassVar[tuple[str, ...]] = ()
    opens_reply: ClassVar[str] = ""
    shape: ClassVar[CallShape | None] = None
    has_escapes: ClassVar[bool] = True

    @abstractmethod
    def read(self, text: Incoming, functions: Functions) -> Reading[list[Written]]:
        """Reads a call, or several, from where an opening stands.

        What it has read when it fails is no call; what it has not is looked through for others.

        Raises:
            UnreadableError: there is none.
        """

    def write(self, calls: Sequence[Written]) -> str:
        """Writes calls as models do, for templates that leave this to their callers."""
        assert self.shape is not None
        before, name, arguments, end, between, after = self.shape
        written = [
            name + call.name + arguments + write_json(call.arguments) + end for call in calls
        ]
        return before + (between or "").join(written) + after


class JsonForm(CallForm):
    """Calls as JSON behind an opening: an object each, or a list of objects.

    Attributes:
        closing: behind them; it may be missing where the reply ends. Empty where nothing closes
            calls; then they are one object, or one list.
        name_key: of the name in an object.
    """

    closing: ClassVar[str] = ""
    name_key: ClassVar[str] = "name"

    def read(self, text: Incoming, functions: Functions) -> Reading[list[Written]]:
        """See ``CallForm``."""
        yield from text.comes_any(*self.openings)
        calls = written_calls((yield from text.json()), self.name_key)
        while self.closing and not (yield from text.comes(self.closing)) and not text.is_over:
            calls += written_calls((yield from text.json()), self.name_key)
        return calls


def written_calls(value: Any, name_key: str = "name") -> list[Written]:
    """Calls that are written as JSON: objects with a name and arguments.

    Raises:
        UnreadableError: it is something else.
    """
    values = value if isinstance(value, list) else [value]
    if not values:
        raise UnreadableError("no calls")
    return [_written(each, name_key) for each in values]


def _written(value: Any, name_key: str) -> Written:
    name = value.get(name_key) if isinstance(value, dict) else None
    if not isinstance(name, str):
        raise UnreadableError("no name")
    arguments = value.get("arguments", value.get("parameters", {}))
    if not isinstance(arguments, dict):
        raise UnreadableError("arguments that are no object")
    return Written(name, arguments)


def plain(value: Any) -> str:
    """A value without quotes: a text as it is, all else as JSON."""
    return value if isinstance(value, str) else write_json(value)
