"""What a program and those who read experts for it say to one another, and who decides what leaves.

A program posts the experts that a layer needs and then waits for those that are missing, one after
the other (``kernels/experts/fetch.py``); others read them. The two sides share some words. The pool
looks at them and changes them through ``Words`` alone, so that a test can let the other side go on
in between, at any place.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias

Entry: TypeAlias = tuple[int, int]  # layer, expert
Aborted: TypeAlias = Callable[[], bool]  # whether the run under way was given up


class Eviction(Protocol):
    """Says who leaves; ``edgerun.offload.policies`` has such."""

    def use(self, layer: int, experts: Sequence[int], scores: Sequence[float]) -> None:
        """A layer needs some experts, each once; a score is the weight of an expert's result."""

    def rank(self, entry: Entry) -> tuple[float, ...]:
        """How much an expert is worth that was used before; the lowest leaves first."""

    def in_order(self) -> Iterable[Entry] | None:
        """All that were used and did not leave, by rank; None if all have to be ranked."""

    def leave(self, entry: Entry) -> None:
        """An expert leaves."""


@dataclass(frozen=True, slots=True)
class Post:
    """What a layer needs.

    Attributes:
        layer: its number.
        experts: each once, in the order in which the program comes to them.
        scores: how much the result of each counts.
        number: of the post.
        seconds: when it was posted, on the clock of ``Prefetch``.
        has_input: the layer's input was posted with it, so that later layers can be foreseen.
        needs_most: of the layer's experts nearly all, as prompts do; then later layers will, too.
        entries: the experts with their layer, in their order.
    """

    layer: int
    experts: tuple[int, ...]
    scores: tuple[float, ...]
    number: int = 0
    seconds: float = 0.0
    has_input: bool = False
    needs_most: bool = False
    entries: tuple[Entry, ...] = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        """Works out what is asked for all the time."""
        entries = tuple((self.layer, expert) for expert in self.experts)
        object.__setattr__(self, "entries", entries)

    @property
    def foretells(self) -> bool:
        """Whether it says something of what later layers need."""
        return self.has_input or self.needs_most


@dataclass(frozen=True, slots=True)
class Read:
    """What is to be read next, and where to.

    Attributes:
        entry: layer and expert.
        slot: its number.
        begun: the number of the last post when it was decided.
    """

    entry: Entry
    slot: int
    begun: int = 0


@dataclass(frozen=True, slots=True)
class Glance:
    """What is to be foreseen.

    Attributes:
        post: to look from.
        ahead: how many layers.
    """

    post: Post
    ahead: int


class Words(Protocol):
    """What a program and the pool share, one access at a time."""

    def posted(self) -> int:
        """The number of the last post."""

    def post(self, number: int) -> Post | None:
        """A post; None if a later one of its layer has taken its place."""

    def done(self, layer: int) -> int:
        """How many experts of its last post a layer is done with."""

    def over(self) -> int:
        """The number of the last post of runs that have ended."""

    def evict(self, entry: Entry, number: int) -> bool:
        """Takes an expert from the program, unless it has posted since ``number``; whether."""

    def publish(self, entry: Entry, slot: int) -> None:
        """Gives the program an expert that was read."""
