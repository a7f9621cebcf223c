"""Who has a slot, who gets the next, and in which order: rules alone, without threads or memory.

A program posts the experts that a layer needs and then waits for those that are missing, one after
the other (``kernels/experts/fetch.py``); others read them. What is needed by the layer that runs
stays, and so does what is being read. Everything else may leave when a slot is needed, in the
order of a policy. Whoever calls holds one lock.

The two sides share some words. They are looked at and changed through ``Words`` alone, so that a
test can let the other side go on in between, at any place.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush, nsmallest
from typing import Protocol, TypeAlias

Entry: TypeAlias = tuple[int, int]  # layer, expert
Worth: TypeAlias = tuple[float, ...]

MOST_NOTES = 8  # of an expert, most of them out of date


class Eviction(Protocol):
    """Says who leaves; ``edgerun.offload.policies`` has such.

    Attributes:
        is_timeless: the rank of an expert changes when it is used, and at no other time.
    """

    is_timeless: bool

    def use(self, layer: int, experts: Sequence[int], scores: Sequence[float]) -> None:
        """A layer needs some experts, each once; a score is the weight of an expert's result."""

    def rank(self, entry: Entry) -> tuple[float, ...]:
        """How much an expert is worth that was used before; the lowest leaves first."""

    def leave(self, entry: Entry) -> None:
        """An expert leaves."""


@dataclass(frozen=True, slots=True)
class Post:
    """What a layer needs.

    Attributes:
        layer: its number.
        experts: each once, in the order in which the program comes to them.
        scores: how much the result of each counts.
    """

    layer: int
    experts: tuple[int, ...]
    scores: tuple[float, ...]


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


class Pool:
    """Slots, and the experts in them."""

    def __init__(self, slots: int, wave: int, policy: Eviction, words: Words) -> None:
        """All slots are free.

        Args:
            slots: how many there are.
            wave: experts that a program computes together where it needs more than ``slots``.
            policy: says who leaves.
            words: shared with programs.
        """
        self._slots, self._wave, self._policy, self._words = slots, wave, policy, words
        self._free = list(range(slots))
        self._resident: dict[Entry, int] = {}
        self._reading: dict[Entry, int] = {}
        self._order: list[tuple[Worth, Entry]] = []  # a heap; what is out of date is noted again
        self._unused: set[Entry] = set()  # that were wished for, and not needed so far
        self._missing: deque[Entry] = deque()
        self._wished: deque[Entry] = deque()
        self._live: Post | None = None  # the last one
        self._seen = 0  # its number

    @property
    def resident(self) -> dict[Entry, int]:
        """The experts in memory, and their slots."""
        return dict(self._resident)

    def next_read(self) -> Read | None:
        """What is to be read now; None if nothing, or no slot may be had for it."""
        self._take_posts()
        if self._is_over():
            self._missing.clear()
        self._make_room(len(self._missing))
        entry = self._next_missing()
        if entry is None:
            entry = self._next_wished()
        if entry is None:
            return None
        slot = self._free.pop()
        self._reading[entry] = slot
        return Read(entry, slot, self._seen)

    @property
    def has_more(self) -> bool:
        """Whether another may read something, too."""
        return bool(self._missing and self._free)

    def finish(self, read: Read) -> None:
        """An expert lies in its slot."""
        del self._reading[read.entry]
        self._resident[read.entry] = read.slot
        self._words.publish(read.entry, read.slot)
        self._note([read.entry])

    def fail(self, read: Read) -> bool:
        """An expert could not be read; whether that is why a program waits in vain.

        A read that was begun in a run that has ended says nothing of this one: where it is needed
        it is tried again.
        """
        del self._reading[read.entry]
        self._unused.discard(read.entry)
        self._free.append(read.slot)
        if read.entry not in self._needed():
            return False
        if read.begun > self._words.over():
            return True
        self._missing.appendleft(read.entry)
        return False

    def forget_reads(self) -> None:
        """Nobody reads any more what was being read: a process has no threads of its parent."""
        for entry, slot in list(self._reading.items()):
            self.fail(Read(entry, slot))

    def wish(self, layer: int, experts: Iterable[int]) -> None:
        """Asks for experts that may soon be needed, in place of those wished for before.

        They are read while nothing is missing that a program waits for. Nobody asks yet: this is
        where prefetching begins, and its rules are explored like all others.
        """
        self._wished = deque((layer, expert) for expert in experts)

    def _take_posts(self) -> None:
        """Takes note of what was posted, until nothing new is."""
        while (posted := self._words.posted()) != self._seen:
            first, self._seen = self._seen + 1, posted
            for number in range(first, posted + 1):
                post = self._words.post(number)
                if post is not None:
                    self._take(post)

    def _take(self, post: Post) -> None:
        self._live = post
        entries = [(post.layer, expert) for expert in post.experts]
        self._missing = deque(entry for entry in entries if self._is_absent(entry))
        try:
            self._make_room(len(self._missing))
            self._policy.use(post.layer, post.experts, post.scores)
        except Exception:
            self._unused.update(entries)  # the policy may not know them
            raise
        self._unused.difference_update(entries)
        self._note(entry for entry in entries if entry in self._resident)

    def _is_absent(self, entry: Entry) -> bool:
        return entry not in self._resident and entry not in self._reading

    def _next_missing(self) -> Entry | None:
        while self._missing and self._free:
            entry = self._missing.popleft()
            if self._is_absent(entry):
                return entry
        return None

    def _next_wished(self) -> Entry | None:
        while self._wished:
            entry = self._wished.popleft()
            if self._is_absent(entry):
                self._make_room(1)
                if self._free:
                    self._unused.add(entry)
                    return entry
        return None

    def _make_room(self, slots: int) -> None:
        """Lets experts leave until so many slots are free, or nobody else may."""
        excess = slots - len(self._free)
        if excess > 0:
            for entry in self._lowest(excess):
                if not self._evict(entry):
                    return
        if self._missing and not self._free:
            self._make_room_in_order()

    def _make_room_in_order(self) -> None:
        """Lets an expert of a later wave leave for one that the program waits for.

        Such came before anybody knew when they would be needed. The program goes on to no later
        wave meanwhile, for it waits.
        """
        post = self._live
        if post is None or len(post.experts) <= self._slots:
            return
        order = [(post.layer, expert) for expert in post.experts]
        end = self._words.done(post.layer) + self._wave
        if self._missing[0] not in order[:end]:
            return
        for entry in reversed(order[end:]):
            if entry in self._resident:
                if self._evict(entry):
                    self._unused.add(entry)  # it comes again before its policy hears of it
                    waiting = {*self._missing, entry}
                    self._missing = deque(each for each in order if each in waiting)
                return

    def _evict(self, entry: Entry) -> bool:
        """Lets an expert leave; False if there are new posts, which may need it."""
        if not self._words.evict(entry, self._seen):
            return False
        self._free.append(self._resident.pop(entry))
        if entry in self._unused:
            self._unused.remove(entry)
        else:
            self._policy.leave(entry)
        return True

    def _lowest(self, count: int) -> list[Entry]:
        """Those that are in memory and not needed by the layer that runs, the lowest first.

        To rank them all would take longer than to read one.
        """
        needed = self._needed()
        if not self._policy.is_timeless:
            return nsmallest(count, self._resident.keys() - needed, key=self._worth)
        lowest: dict[Entry, None] = {}
        taken = []
        while self._order and len(lowest) < count:
            worth, entry = heappop(self._order)
            if entry in self._resident and worth == self._worth(entry):
                taken.append((worth, entry))
                if entry not in needed:
                    lowest[entry] = None
        for each in taken:
            heappush(self._order, each)
        return list(lowest)

    def _note(self, entries: Iterable[Entry]) -> None:
        """Takes note of what experts in memory are worth now."""
        for entry in entries:
            heappush(self._order, (self._worth(entry), entry))
        if len(self._order) > MOST_NOTES * (len(self._resident) + 1):
            self._order = [(self._worth(entry), entry) for entry in self._resident]
            heapify(self._order)

    def _needed(self) -> set[Entry]:
        """What the layer that runs is not done with."""
        post = self._live
        if post is None or self._is_over():
            return set()
        return {(post.layer, expert) for expert in post.experts[self._words.done(post.layer) :]}

    def _is_over(self) -> bool:
        """Whether the last post is that of a run that has ended."""
        return self._seen <= self._words.over()

    def _worth(self, entry: Entry) -> Worth:
        is_used = entry not in self._unused
        return (is_used, *(self._policy.rank(entry) if is_used else ()), *entry)
