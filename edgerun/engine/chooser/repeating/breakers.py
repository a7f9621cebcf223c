"""Texts over which no repetition goes, wherever tokens begin and end in them."""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

from edgerun.engine.chooser.vocabulary import Vocabulary

START = 0  # the state behind bytes that no text begins with
MOST_STEPS = 1 << 16  # that are remembered: some megabytes


class Step(NamedTuple):
    """What a token does.

    Attributes:
        state: behind it.
        breaks: whether a text ends within it, or it is a control token.
    """

    state: int
    breaks: bool


class Breakers:
    """Finds where texts end, token by token, in a time that depends on the token alone.

    A state is the longest beginning of a text that the bytes so far end with (Aho and Corasick
    1975, "Efficient string matching"). So nobody looks back, however many tokens spell nothing,
    and however many texts there are. Nothing of one sequence is remembered: all replies to a
    prompt may use the same object.
    """

    def __init__(self, texts: tuple[str, ...], vocabulary: Vocabulary | None) -> None:
        """Without a vocabulary there may be no texts."""
        self._vocabulary = vocabulary
        self._next: dict[tuple[int, int], int] = {}  # by state and byte; none leads to the start
        self._shorter = [START]  # of each state the next shorter beginning it ends with
        self._is_end = [False]
        self._steps: dict[tuple[int, int], Step] = {}
        for text in texts:
            self._add(text.encode())
        self._link()
        self._leaves = frozenset(range(1, len(self._is_end))) - {state for state, _ in self._next}

    def step(self, state: int, id_: int) -> Step:
        """What a token does behind a state."""
        step = self._steps.get((state, id_))
        if step is None:
            if len(self._steps) >= MOST_STEPS:
                self._steps.clear()
            step = self._steps[state, id_] = self._step(state, id_)
        return step

    def _step(self, state: int, id_: int) -> Step:
        if self._vocabulary is None:
            return Step(START, False)
        breaks = id_ in self._vocabulary.control_ids
        for byte in self._vocabulary.token_bytes(id_):
            state = self._behind(state, byte)
            breaks = breaks or self._is_end[state]
        while state in self._leaves:  # what is behind a whole text is behind its shorter state
            state = self._shorter[state]
        return Step(state, breaks)

    def _behind(self, state: int, byte: int) -> int:
        """The state behind a byte."""
        while (following := self._next.get((state, byte))) is None and state != START:
            state = self._shorter[state]
        return START if following is None else following

    def _add(self, text: bytes) -> None:
        state = START
        for byte in text:
            following = self._next.get((state, byte))
            if following is None:
                following = self._next[state, byte] = len(self._is_end)
                self._is_end.append(False)
                self._shorter.append(START)
            state = following
        self._is_end[state] = True

    def _link(self) -> None:
        """Says of each state which is the next shorter one, the shortest first."""
        children: dict[int, list[tuple[int, int]]] = {}
        for (state, byte), following in self._next.items():
            children.setdefault(state, []).append((byte, following))
        states = deque([START])
        while states:
            state = states.popleft()
            for byte, following in children.get(state, ()):
                if state != START:
                    shorter = self._shorter[following] = self._behind(self._shorter[state], byte)
                    self._is_end[following] |= self._is_end[shorter]
                states.append(following)
