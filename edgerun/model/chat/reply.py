"""Takes a reply apart while it comes: what the model thinks, what it answers, what it calls."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, TypeAlias

from edgerun.model.chat.thinking.reader import Thought

if TYPE_CHECKING:
    from edgerun.model.chat.thinking.reader import ThoughtReader
    from edgerun.model.chat.tools.call import ToolCall
    from edgerun.model.chat.tools.markers import Markers
    from edgerun.model.chat.tools.reader import CallReader

Event: TypeAlias = "str | Thought | ToolCall"


class ReplyReader:
    """Reads one reply; a call within a thought is a thought."""

    def __init__(
        self, markers: Markers, thoughts: ThoughtReader | None, calls: CallReader | None
    ) -> None:
        """Takes what reads each of them, None where there is nothing to read.

        Args:
            markers: control tokens as they stand in the text, for both.
            thoughts: tells thoughts from the answer.
            calls: reads calls out of the answer.
        """
        self._markers, self._thoughts, self._calls = markers, thoughts, calls

    @property
    def marked(self) -> Mapping[int, str]:
        """What a decoder is to write for some control tokens, by their ids."""
        return self._markers.characters

    @property
    def is_thinking(self) -> bool:
        """Whether a thought has begun and not ended."""
        return self._thoughts is not None and self._thoughts.is_thinking

    def push(self, text: str) -> Sequence[Event]:
        """Takes the next text; returns what is certain now, in its order."""
        return self._told(self._thoughts.push(text) if self._thoughts else [text])

    def finish(self) -> Sequence[Event]:
        """Ends the reply; returns what is left of it."""
        events = self._told(self._thoughts.finish() if self._thoughts else ())
        return [*events, *(self._calls.finish() if self._calls else ())]

    def _told(self, parts: Iterable[Thought | str]) -> Sequence[Event]:
        events: list[Event] = []
        for part in parts:
            if isinstance(part, Thought):
                events.append(Thought(self._markers.shown(part.text)))
            elif self._calls:
                events += self._calls.push(part)
            else:
                events.append(self._markers.shown(part))
        return events
