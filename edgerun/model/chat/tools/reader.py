"""Reads the calls out of a reply while it comes, and passes on what is text."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Sequence
from typing import TypeAlias

from edgerun.model.chat.tools.call import ToolCall
from edgerun.model.chat.tools.form import CallForm, Written
from edgerun.model.chat.tools.functions import Functions
from edgerun.model.chat.tools.incoming import Incoming, Reading
from edgerun.model.chat.tools.markers import Markers
from edgerun.model.chat.tools.values import MAX_DEPTH, UnreadableError, depth_of, write_json

Event: TypeAlias = str | ToolCall
MOST_SPACES = 64  # before calls, which belong to them
BLANK = " \t\r\n"


class CallReader:
    """Reads one reply.

    Text comes out of it as soon as it is clear that it is none of a call: held back are spaces, the
    beginning of what calls may begin with, and calls. What begins as a call and turns out to be
    none is text, whole. The same text and calls come out however the reply is cut into pieces.
    """

    def __init__(
        self,
        form: CallForm,
        functions: Functions,
        markers: Markers,
        new_id: Callable[[str], str],
    ) -> None:
        """Begins a reply.

        Args:
            form: in which the model writes calls.
            functions: that it may call.
            markers: control tokens as they stand in the text.
            new_id: makes the id of a call of a function.
        """
        self._form, self._functions, self._new_id = form, functions, new_id
        self._text = Incoming(markers)
        openings = [self._text.coded(opening) for opening in form.openings]
        self._opening = re.compile("|".join(map(re.escape, openings)))
        self._prefixes = {text[:end] for text in openings for end in range(1, len(text))}
        self._spaces = ""  # which belong to a call, if one follows
        self._is_behind_call = False
        self._events: list[Event] = []
        self._run = self._reading()
        next(self._run)

    def push(self, text: str) -> Sequence[Event]:
        """Takes the next text; returns text and calls that are certain now, in their order."""
        self._text.feed(text)
        return self._advance()

    def finish(self) -> Sequence[Event]:
        """Ends the reply; returns what is left of it."""
        self._text.end()
        return self._advance()

    def _advance(self) -> Sequence[Event]:
        next(self._run, None)
        events, self._events = self._events, []
        return events

    def _reading(self) -> Reading[None]:
        text = self._text
        self._spaces = yield from text.spaces()
        opening = self._form.opens_reply.strip()
        if opening and (yield from text.follows(opening, read=False)):
            yield from self._calls()
        while (yield from self._plain()):
            yield from self._calls()

    def _plain(self) -> Reading[bool]:
        """Passes on text; whether calls may begin where it ends."""
        text = self._text
        while True:
            match = self._opening.search(text.text, text.at)
            self._read_to(match.start() if match else self._held(self._prefixes))
            if match:
                return True
            if text.has_ended:
                break
            yield
        self._read_to(len(text.text))
        if not self._is_behind_call:
            self._release(self._spaces)
        return False

    def _calls(self) -> Reading[None]:
        """Reads calls, or what looks like them, from where they may begin."""
        text, mark = self._text, self._text.mark()
        calls: list[ToolCall] = []
        try:
            for written in (yield from self._form.read(text, self._functions)):
                calls.append(self._call(written))
        except UnreadableError:
            calls.clear()
        read = text.since(mark)
        if not calls:
            self._pass(text.markers.spelled(read))
            self._read_to(text.at if read else text.at + 1)
            return
        self._events += calls
        self._spaces, self._is_behind_call = "", True

    def _call(self, written: Written) -> ToolCall:
        """A call as programs get it.

        Raises:
            UnreadableError: there is no such function, or the arguments are no JSON.
        """
        if written.name not in self._functions.schemas:
            raise UnreadableError(f"no function {written.name}")
        if depth_of(written.arguments) > MAX_DEPTH:
            raise UnreadableError("too many levels")
        arguments = write_json(written.arguments)
        return ToolCall(self._new_id(written.name), written.name, arguments)

    def _held(self, prefixes: Collection[str]) -> int:
        """Where that begins at the end of the text which may be the beginning of something."""
        text = self._text
        most = min(max(map(len, prefixes), default=0), len(text.text) - text.at)
        held = (length for length in range(most, 0, -1) if text.text[-length:] in prefixes)
        return len(text.text) - next(held, 0)

    def _read_to(self, end: int) -> None:
        self._pass(self._text.text[self._text.at : end])
        self._text.at = end

    def _pass(self, text: str) -> None:
        """Passes on text, but for spaces at its end, which may belong to a call."""
        text = self._spaces + text
        spaces = text[len(text.rstrip(BLANK)) :][-MOST_SPACES:]
        self._spaces = spaces
        self._release(text[: len(text) - len(spaces)])

    def _release(self, text: str) -> None:
        if text.strip(BLANK):
            self._is_behind_call = False
        said = self._text.markers.shown(text)
        if said:
            self._events.append(said)
