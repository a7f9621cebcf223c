"""Who has a slot, who gets the next, and in which order: rules alone, without threads or memory.

What is needed by the layer that runs stays, and so does what is being read. Everything else may
leave when a slot is needed (``order.py``). Whoever calls holds one lock.

A program waits from its post on, so the first reads begin with the slots that are spare; what a
post means for everything else is settled while they are under way.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from edgerun.backends.cpu.experts.foresight import Foresight
from edgerun.backends.cpu.experts.order import LeavingOrder
from edgerun.backends.cpu.experts.prefetch import REACH, Prefetch
from edgerun.backends.cpu.experts.protocol import Entry, Eviction, Glance, Post, Read, Words

MOST_LATE = 16  # posts: many at once cost a program's own threads their turns


class Pool:
    """Slots, and the experts in them.

    Attributes:
        prefetch: says whether wishes are to be read.
        repeats: the run under way may come to a layer several times before it goes on to the next:
            what of the layer it brought stays until then.
    """

    def __init__(
        self,
        slots: int,
        wave: int,
        policy: Eviction,
        words: Words,
        prefetch: Prefetch,
        *,
        spare: int = 0,
    ) -> None:
        """All slots are free.

        Args:
            slots: how many there are.
            wave: experts that a program computes together where it needs more than ``slots``.
            policy: says who leaves.
            words: shared with programs.
            prefetch: says when wishes are read.
            spare: slots that are to be free when a program asks, so that reads begin at once.
        """
        self.prefetch, self.repeats = prefetch, False
        self._slots, self._wave, self._policy, self._words = slots, wave, policy, words
        self._spare, self._free = spare, list(range(slots))
        self._resident: dict[Entry, int] = {}
        self._reading: dict[Entry, int] = {}
        self._foresight = Foresight(self.prefetch)
        self._order = LeavingOrder(policy, self._foresight, self._resident)
        self._missing: deque[Entry] = deque()
        self._unsettled: deque[Post] = deque()
        self._live: Post | None = None  # the last one
        self._settled = -1  # layer of the last post that was settled
        self._glanced = 0, 0  # number of the last post that somebody looks from, how far ahead
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
        entry = self._next_missing()
        if entry is None:
            self._settle()
            self._make_room(len(self._missing))
            entry = self._next_missing() or self._next_wished()
        elif self._unsettled:
            self._order.unused.add(entry)  # its policy does not know it yet
        if entry is None:
            return None
        slot = self._free.pop()
        self._reading[entry] = slot
        return Read(entry, slot, self._seen)

    def next_glance(self) -> Glance | None:
        """What is to be foreseen now, if anything; whoever asks does that, and then wishes."""
        ahead = self._next_ahead()
        if not ahead:
            return None
        assert self._live is not None
        self._glanced = self._live.number, ahead
        return Glance(self._live, ahead)

    @property
    def has_more(self) -> bool:
        """Whether another may do something, too."""
        if self._missing and self._has_link():
            return bool(self._free or self._unsettled)
        has_wish = self._foresight.has_wishes and self._has_link(for_wish=True)
        return has_wish or bool(self._unsettled) or self._next_ahead() > 0

    @property
    def is_at_rest(self) -> bool:
        """Whether nothing is being read or to be read of what was posted, as far as it was taken.

        Then posts may be taken later, some of them together, if all that they need is in memory.
        """
        if self._missing or self._reading or self._foresight.has_wishes:
            return False
        posted, over = self._words.posted(), self._words.over()
        return over <= self._seen and over < posted <= self._seen + MOST_LATE

    def finish(self, read: Read, seconds: float = 0.0) -> None:
        """An expert lies in its slot; to read it took so long."""
        self._words.publish(read.entry, read.slot)
        del self._reading[read.entry]
        self._resident[read.entry] = read.slot
        self._take_posts()  # which may ask for it
        is_wish = read.entry in self._order.unused and read.entry not in self._needed()
        self.prefetch.note_arrival(seconds, is_wish=is_wish)

    def fail(self, read: Read) -> bool:
        """An expert could not be read; whether that is why a program waits in vain.

        A read that was begun in a run that has ended says nothing of this one: where it is needed
        it is tried again.
        """
        del self._reading[read.entry]
        self._order.unused.discard(read.entry)
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
            self._words.evict(entry, self._words.posted())  # published, and nobody was told yet
            self.fail(Read(entry, slot))

    def wish(
        self, layer: int, experts: Iterable[int], number: int | None = None, ahead: int = 1
    ) -> None:
        """Asks for experts that a layer will need by all appearances, the likeliest first.

        Those that are missing are read while nothing is that a program waits for, up to the post
        of that layer. Others leave before they do. After the post of ``number`` a wish comes too
        late. ``ahead`` is what ``Prefetch`` tells kinds of guesses by.
        """
        self._take_posts()
        if number is not None and (number != self._seen or self._is_over()):
            return
        self._settle()
        entries = [(layer, expert) for expert in experts]
        absent = [entry for entry in entries if self._is_absent(entry)]
        self._foresight.expect(layer, entries, absent, ahead)

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
        self._unsettled.append(post)
        self._foresight.pass_by(post.layer)
        self._missing = deque(entry for entry in post.entries if self._is_absent(entry))
        self.prefetch.note_post(post.layer, post.seconds)

    def _settle(self) -> None:
        """Lets guesses and the policy know of all posts, and makes room for what is missing."""
        while self._unsettled:
            post = self._unsettled.popleft()
            entries, unused = post.entries, self._order.unused
            is_again = self.repeats and post.layer == self._settled
            if post.layer <= self._settled and not is_again:
                self._foresight.forget()  # of a run that was given up
            self._settled = post.layer
            awaited = self._foresight.judge(post.layer, entries, unused)
            if self.repeats:
                self._foresight.keep(post.layer, [*awaited, *entries])
            try:
                if post is self._live:
                    self._make_room(len(self._missing))
                self._policy.use(post.layer, post.experts, post.scores)
            except Exception:
                unused.update(entries)  # the policy may not know them
                raise
            unused.difference_update(entries)

    def _is_absent(self, entry: Entry) -> bool:
        return entry not in self._resident and entry not in self._reading

    def _next_missing(self) -> Entry | None:
        while self._missing and self._free and self._has_link():
            entry = self._missing.popleft()
            if self._is_absent(entry):
                return entry
        return None

    def _next_wished(self) -> Entry | None:
        """A wish that is to be read now; else nothing, and there are spare slots again."""
        if self._missing:
            return None
        entry = None
        if self._has_link(for_wish=True) and self._foresight.has_wishes:
            entry = self._foresight.next_wish(self._is_absent)
        self._make_room(self._spare + (entry is not None), for_wish=True)
        if entry is None or not self._free:
            return None
        self._order.unused.add(entry)
        self.prefetch.guesses.wished += 1
        return entry

    def _has_link(self, *, for_wish: bool = False) -> bool:
        """Whether a read would begin at once; a wish must keep nobody waiting."""
        return len(self._reading) < self.prefetch.at_once + (not for_wish)

    def _next_ahead(self) -> int:
        """How many layers ahead to look from the last post: further if nothing else is to be read.

        0 is nowhere.
        """
        post, (number, ahead) = self._live, self._glanced
        if post is None or not post.foretells or self._is_over():
            return 0
        if number != post.number:
            return 1
        is_idle = not self._missing and not self._foresight.has_wishes
        return ahead + 1 if is_idle and post.has_input and ahead < REACH else 0

    def _make_room(self, slots: int, *, for_wish: bool = False) -> None:
        """Lets experts leave until so many slots are free, or nobody else may."""
        excess = slots - len(self._free)
        if excess > 0:
            for entry in self._order.lowest(excess, self._needed()):
                if for_wish and self._foresight.awaits(entry):
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
        order, end = post.entries, self._words.done(post.layer) + self._wave
        if self._missing[0] not in order[:end]:
            return
        for entry in reversed(order[end:]):
            if entry in self._resident:
                if self._evict(entry):
                    self._order.unused.add(entry)  # it comes again before its policy hears of it
                    waiting = {*self._missing, entry}
                    self._missing = deque(each for each in order if each in waiting)
                return

    def _evict(self, entry: Entry) -> bool:
        """Lets an expert leave; False if there are new posts, which may need it."""
        if not self._words.evict(entry, self._seen):
            return False
        self._free.append(self._resident.pop(entry))
        self._order.leave(entry)
        return True

    def _needed(self) -> set[Entry]:
        """What the layer that runs is not done with."""
        post = self._live
        if post is None or self._is_over():
            return set()
        return set(post.entries[self._words.done(post.layer) :])

    def _is_over(self) -> bool:
        """Whether the last post is that of a run that has ended."""
        return self._seen <= self._words.over()
