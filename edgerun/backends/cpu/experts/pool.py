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

from edgerun.backends.cpu.experts.prefetch import Prefetch

Entry: TypeAlias = tuple[int, int]  # layer, expert
Worth: TypeAlias = tuple[float, ...]

MOST_NOTES = 8  # of an expert, most of them out of date
UNUSED, USED, AWAITED = range(3)  # what an expert is worth before its policy is asked


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
        number: of the post.
        seconds: when it was posted, on the clock of ``Prefetch``.
        has_input: the layer's input was posted with it, so that later layers can be foreseen.
    """

    layer: int
    experts: tuple[int, ...]
    scores: tuple[float, ...]
    number: int = 0
    seconds: float = 0.0
    has_input: bool = False


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


@dataclass(frozen=True, slots=True)
class Guess:
    """What a layer will need by all appearances.

    Attributes:
        entries: all of it.
        absent: those that were not in memory.
    """

    entries: frozenset[Entry]
    absent: frozenset[Entry]


class Pool:
    """Slots, and the experts in them; ``prefetch`` says whether wishes are to be read."""

    def __init__(
        self,
        slots: int,
        wave: int,
        policy: Eviction,
        words: Words,
        prefetch: Prefetch | None = None,
    ) -> None:
        """All slots are free.

        Args:
            slots: how many there are.
            wave: experts that a program computes together where it needs more than ``slots``.
            policy: says who leaves.
            words: shared with programs.
            prefetch: says when wishes are read; as soon as nothing is missing unless given.
        """
        self._slots, self._wave, self._policy, self._words = slots, wave, policy, words
        self.prefetch = prefetch or Prefetch(always=True)
        self._free = list(range(slots))
        self._resident: dict[Entry, int] = {}
        self._reading: dict[Entry, int] = {}
        self._on_link: set[Entry] = set()  # those of them that have not arrived
        self._order: list[tuple[Worth, Entry]] = []  # a heap; what is out of date is noted again
        self._unused: set[Entry] = set()  # that were wished for, and not needed so far
        self._missing: deque[Entry] = deque()
        self._wished: deque[Entry] = deque()
        self._awaited: dict[int, Guess] = {}  # by layer
        self._live: Post | None = None  # the last one
        self._glanced = 0  # number of the last post that somebody looks at
        self._seen = 0  # number of the last post

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
        self._on_link.add(entry)
        return Read(entry, slot, self._seen)

    def next_glance(self) -> Post | None:
        """The last post, if nobody has looked at its input; whoever asks does, and then wishes."""
        post = self._live
        if post is None or not post.has_input or post.number == self._glanced or self._is_over():
            return None
        self._glanced = post.number
        return post

    @property
    def has_more(self) -> bool:
        """Whether another may read something, too."""
        return bool((self._missing and self._free) or (self._wished and self._has_link()))

    def arrive(self, read: Read, seconds: float = 0.0) -> None:
        """What was read is in memory after so long, and the link free for others."""
        self._take_posts()  # which may ask for it
        self._on_link.discard(read.entry)
        self.prefetch.note_arrival(seconds, is_wish=read.entry in self._unused)

    def finish(self, read: Read) -> None:
        """An expert lies in its slot."""
        self._take_back(read)
        self._resident[read.entry] = read.slot
        self._words.publish(read.entry, read.slot)
        self._note([read.entry])

    def fail(self, read: Read) -> bool:
        """An expert could not be read; whether that is why a program waits in vain.

        A read that was begun in a run that has ended says nothing of this one: where it is needed
        it is tried again.
        """
        self._take_back(read)
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

    def wish(self, layer: int, experts: Iterable[int], number: int | None = None) -> None:
        """Asks for experts that a layer will need by all appearances, the likeliest first.

        Those that are missing are read while nothing is that a program waits for, up to the next
        post. Others leave before they do. After the post of ``number`` a wish comes too late.
        """
        self._take_posts()
        if number is not None and (number != self._seen or self._is_over()):
            return
        entries = [(layer, expert) for expert in experts]
        absent = [entry for entry in entries if self._is_absent(entry)]
        before = self._awaited.pop(layer, None)
        self._awaited[layer] = Guess(frozenset(entries), frozenset(absent))
        self._note(entries if before is None else before.entries.union(entries))
        self._wished.extend(absent)

    def _take_back(self, read: Read) -> None:
        del self._reading[read.entry]
        self._on_link.discard(read.entry)

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
        self._wished.clear()
        entries = [(post.layer, expert) for expert in post.experts]
        self._judge(self._awaited.pop(post.layer, None), post, entries)
        self._missing = deque(entry for entry in entries if self._is_absent(entry))
        try:
            self._make_room(len(self._missing))
            self._policy.use(post.layer, post.experts, post.scores)
        except Exception:
            self._unused.update(entries)  # the policy may not know them
            self._note(entry for entry in entries if entry in self._resident)
            raise
        self._unused.difference_update(entries)
        self._note(entries)

    def _judge(self, guess: Guess | None, post: Post, entries: Sequence[Entry]) -> None:
        """Compares what a layer needs with what was awaited."""
        self.prefetch.note_post(post.layer, post.seconds)
        if guess is None:
            return
        self.prefetch.note_guess(
            needed=len(entries),
            foreseen=len(guess.entries.intersection(entries)),
            absent=len(guess.absent),
            right=len(guess.absent.intersection(entries)),
        )
        wasted = guess.absent.difference(entries) & self._unused
        self.prefetch.guesses.wasted += len(wasted)
        self._note(guess.entries)

    def _is_absent(self, entry: Entry) -> bool:
        return entry not in self._resident and entry not in self._reading

    def _next_missing(self) -> Entry | None:
        while self._missing and self._free:
            entry = self._missing.popleft()
            if self._is_absent(entry):
                return entry
        return None

    def _next_wished(self) -> Entry | None:
        while self._wished and not self._missing and self._has_link() and self.prefetch.pays():
            entry = self._wished.popleft()
            if self._is_absent(entry):
                self._make_room(1, for_wish=True)
                if not self._free:
                    return None
                self._unused.add(entry)
                self.prefetch.guesses.wished += 1
                return entry
        return None

    def _has_link(self) -> bool:
        """Whether a wish would be read at once and keep nobody waiting."""
        return len(self._on_link) < self.prefetch.at_once

    def _make_room(self, slots: int, *, for_wish: bool = False) -> None:
        """Lets experts leave until so many slots are free, or nobody else may."""
        excess = slots - len(self._free)
        if excess > 0:
            for entry in self._lowest(excess):
                if for_wish and self._worth(entry)[0] == AWAITED:
                    return
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
            if entry in self._resident:
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
        guess = self._awaited.get(entry[0])
        if guess is not None and entry in guess.entries:
            return AWAITED, *entry
        if entry in self._unused:
            return UNUSED, *entry
        return USED, *self._policy.rank(entry), *entry
