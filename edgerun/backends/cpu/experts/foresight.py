"""What the next layers will need by all appearances, and what of it is still to be read.

Guesses are made anew with every layer that runs, so that a layer is foreseen from far first and
then from near. What counts is the last guess; those before it began to read earlier.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Sequence, Set
from dataclasses import dataclass, field
from itertools import chain

from edgerun.backends.cpu.experts.prefetch import ALL, Prefetch
from edgerun.backends.cpu.experts.protocol import Entry


@dataclass(slots=True)
class Guess:
    """What a layer will need.

    Attributes:
        entries: by the last guess.
        absent: by how many layers ahead a guess was made (or ``ALL``), what of it was not in
            memory then.
    """

    entries: frozenset[Entry] = frozenset()
    absent: dict[int, frozenset[Entry]] = field(default_factory=dict)


class Foresight:
    """Guesses and wishes; ``prefetch`` learns how good they were."""

    def __init__(self, prefetch: Prefetch) -> None:
        """Expects nothing."""
        self._prefetch = prefetch
        self._guesses: dict[int, Guess] = {}  # by layer
        self._wishes: dict[int, tuple[int, list[Entry]]] = {}  # by layer, with the kind of guess

    @property
    def has_wishes(self) -> bool:
        """Whether something is to be read that nobody asked for."""
        return bool(self._wishes)

    def awaits(self, entry: Entry) -> bool:
        """Whether a layer will need an expert."""
        guess = self._guesses.get(entry[0])
        return guess is not None and entry in guess.entries

    def awaited(self) -> Iterator[Entry]:
        """All experts that layers will need."""
        return chain.from_iterable(guess.entries for guess in self._guesses.values())

    def expect(
        self, layer: int, entries: Sequence[Entry], absent: Sequence[Entry], ahead: int
    ) -> None:
        """Takes a guess, the likeliest first.

        Args:
            layer: that will need them.
            entries: all of them.
            absent: those that are not in memory.
            ahead: how many layers ahead it was made, or ``ALL``.
        """
        guess = self._guesses.setdefault(layer, Guess())
        guess.entries = frozenset(entries)
        guess.absent[ahead] = guess.absent.get(ahead, frozenset[Entry]()).union(absent)
        self._wish(layer, ahead, absent)

    def pass_by(self, layer: int) -> None:
        """A layer has come: wishes for it are too late."""
        for each in [each for each in self._wishes if each <= layer]:
            del self._wishes[each]

    def forget(self) -> None:
        """Expects nothing any more."""
        self._guesses.clear()
        self._wishes.clear()

    def judge(
        self, layer: int, entries: Sequence[Entry], unused: Container[Entry]
    ) -> Iterable[Entry]:
        """Compares what a layer needs with what was expected; returns what is awaited no more.

        Args:
            layer: that came.
            entries: that it needs.
            unused: experts that were read before anybody asked, and not needed so far.
        """
        guess = self._guesses.pop(layer, None)
        if guess is None:
            return ()
        needed = frozenset(entries)
        if guess.absent.keys() - {ALL}:
            self._prefetch.note_recall(len(needed), len(needed & guess.entries))
        for ahead, absent in guess.absent.items():
            self._prefetch.note_guess(ahead, len(absent), len(absent & needed))
        wasted: Set[Entry] = frozenset().union(*guess.absent.values()) - needed
        self._prefetch.guesses.wasted += sum(entry in unused for entry in wasted)
        return guess.entries

    def keep(self, layer: int, entries: Iterable[Entry]) -> None:
        """Awaits experts of a layer that comes again, and none of those before it any more."""
        for each in [each for each in self._guesses if each < layer]:
            del self._guesses[each]
        self._guesses[layer] = Guess(frozenset(entries))

    def next_wish(self, is_absent: Callable[[Entry], bool]) -> Entry | None:
        """What is to be read next, of the nearest layer, where that pays; it is wished no more.

        Args:
            is_absent: whether an expert is not in memory.
        """
        for layer, (ahead, wishes) in sorted(self._wishes.items()):
            absent = [entry for entry in wishes if is_absent(entry)]
            self._wish(layer, ahead, absent)
            if absent and self._prefetch.pays(ahead):
                self._wish(layer, ahead, absent[1:])
                return absent[0]
        return None

    def _wish(self, layer: int, ahead: int, entries: Sequence[Entry]) -> None:
        if entries:
            self._wishes[layer] = ahead, list(entries)
        else:
            self._wishes.pop(layer, None)
