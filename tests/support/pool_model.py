"""A model of programs and readers that share a pool of slots, one small step at a time.

What is modelled is the native side (``kernels/experts/fetch.py``, ``kernels/run/dispatch.py``) and
the loop of the readers (``backends/cpu/experts/stream.py``); the pool is the real one. Everybody is
a generator that yields what its next step needs, and chance decides who goes on: also in between
two looks that the pool takes at the shared words.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import TypeAlias

from edgerun.backends.cpu.experts.pool import Pool
from edgerun.backends.cpu.experts.prefetch import Prefetch
from edgerun.backends.cpu.experts.protocol import Entry, Glance, Post, Read
from edgerun.offload.policies.base import Policy
from edgerun.offload.policies.scan_lru import ScanResistant

Ready: TypeAlias = Callable[[], bool]
Steps: TypeAlias = Generator[Ready, None, None]
ALWAYS: Ready = lambda: True  # noqa: E731 - a constant
MOST_STEPS = 20_000
FIRST_BYTES = "first bytes"


class Broken(AssertionError):  # noqa: N818 - what a test looks for
    """The protocol did what it must not do."""


@dataclass(frozen=True)
class Sizes:
    """What is explored.

    Attributes:
        slots: of the pool.
        layers: that a run goes through.
        experts: of a layer.
        most: experts that a layer needs in a run.
        wave: experts of a wave.
        runs: one after the other.
        threads: of the program.
        readers: that fill slots.
        wishes: how often experts are wished for.
        faults: share of the reads that fail.
        spare: slots that are to be free when something is asked for.
        repeats: how often a run comes to a layer before it goes on to the next.
    """

    slots: int
    layers: int = 2
    experts: int = 4
    most: int = 3
    wave: int = 3
    runs: int = 3
    threads: int = 2
    readers: int = 2
    wishes: int = 0
    faults: float = 0.0
    spare: int = 0
    repeats: int = 1


class Always(Prefetch):
    """What is wished for is read as soon as nothing is missing, whether it pays or not."""

    def looks(self, ahead: int) -> bool:
        return True

    def pays(self, ahead: int) -> bool:
        return True


class World:
    """Shared words, slots, and everybody who uses them; implements ``pool.Words``."""

    def __init__(
        self, sizes: Sizes, seed: int, pool: type[Pool] = Pool, policy: Policy | None = None
    ) -> None:
        self.sizes, self.chance = sizes, random.Random(seed)
        policy = policy or ScanResistant()
        self.pool = pool(sizes.slots, sizes.wave, policy, self, Always(), spare=sizes.spare)
        self.pool.repeats = sizes.repeats > 1
        self.posts: list[tuple[int, Post] | None] = [None] * sizes.layers
        self.log: dict[int, int] = {}
        self.number, self.last_over, self.aborted = 0, 0, False
        self.done_of = [0] * sizes.layers
        self.table: dict[Entry, int] = {}
        self.content: list[Entry | str | None] = [None] * sizes.slots
        self.bell, self.is_locked, self.is_over = 0, False, False
        self.is_posting = False
        self.reads: Counter[Entry] = Counter()
        self.needed: set[Entry] = set()
        self.aborts = self.computed = 0
        program = self._program()
        self._all: list[list[object]] = [[program, next(program)]]
        for steps in [self._reader() for _ in range(sizes.readers)] + [self._wisher()]:
            self._all.append([steps, next(steps)])
        self._running: list[Steps] = []

    def explore(self) -> None:
        """Lets everybody go on until the program has ended.

        Raises:
            Broken: a rule was broken, or nobody can go on.
        """
        for _ in range(MOST_STEPS):
            if self.is_over:
                self.check_slots()
                return
            if not self._step():
                raise Broken("nobody can go on")
        raise Broken("it never ends")

    def _step(self) -> bool:
        """Lets somebody make a step; whether anybody could."""
        ready = [each for each in self._all if each[0] not in self._running and each[1]()]  # type: ignore[operator]
        if not ready:
            return False
        each = self.chance.choice(ready)
        steps: Steps = each[0]  # type: ignore[assignment]
        self._running.append(steps)
        try:
            each[1] = next(steps, lambda: False)
        finally:
            self._running.pop()
        return True

    def _others(self) -> None:
        """What may happen while the pool takes a look at the words: it holds its lock."""
        while self.chance.random() < 0.4 and self._step():
            pass

    # The words, as the pool sees them.

    def posted(self) -> int:
        self._others()
        return self.number

    def post(self, number: int) -> Post | None:
        self._others()
        written = self.posts[self.log[number]]
        return written[1] if written is not None and written[0] == number else None

    def done(self, layer: int) -> int:
        self._others()
        return self.done_of[layer]

    def over(self) -> int:
        self._others()
        return self.last_over

    def evict(self, entry: Entry, number: int) -> bool:
        self._others()
        while self.is_posting:
            self._step()
        if self.number != number:
            return False
        if entry in self.needed:
            raise Broken(f"{entry} was evicted while it was needed")
        del self.table[entry]
        return True

    def publish(self, entry: Entry, slot: int) -> None:
        self._others()
        if self.content[slot] != entry:
            raise Broken(f"{entry} was published before it was read")
        self.table[entry] = slot

    # Everybody.

    def _locked(self) -> bool:
        return not self.is_locked

    def _program(self) -> Steps:
        for _ in range(self.sizes.runs):
            yield ALWAYS
            self.aborted, self.reads = False, Counter()
            for place in range(self.sizes.layers * self.sizes.repeats):
                count = self.chance.randint(0, self.sizes.most)
                experts = self.chance.sample(range(self.sizes.experts), count)
                yield from self._layer(place // self.sizes.repeats, experts)
            yield ALWAYS
            self.last_over = self.number
            yield ALWAYS
            self.bell += 1
            self.aborts += self.aborted
        self.is_over = True

    def _layer(self, layer: int, experts: list[int]) -> Steps:
        """Waves of fetch and products; the experts that are there come first."""
        parts: list[int] = []
        for first in range(0, len(experts), self.sizes.wave):
            yield ALWAYS
            if self.aborted:
                break
            self.is_posting = True
            if first == 0:
                parts = sorted(sorted(experts), key=lambda e: (layer, e) not in self.table)
            wave = parts[first : first + self.sizes.wave]
            self.needed = {(layer, expert) for expert in wave}
            if first == 0:
                yield from self._post(layer, tuple(parts))
            self.done_of[layer] = first
            self.is_posting = False
            missing = {(layer, expert) for expert in parts[first:]} - self.table.keys()
            yield ALWAYS  # the bell is rung behind the lock
            self.bell += bool(missing) or bool(self.sizes.wishes)
            yield from self._products([(layer, expert) for expert in wave])
        self.needed = set()

    def _post(self, layer: int, parts: tuple[int, ...]) -> Steps:
        """Writes a post; nobody evicts meanwhile, but the pool may look at any time."""
        self.posts[layer] = None
        yield ALWAYS
        self.done_of[layer] = 0
        yield ALWAYS
        self.publish_post(layer, parts)
        yield ALWAYS

    def publish_post(self, layer: int, parts: tuple[int, ...]) -> None:
        """Makes a post the last one."""
        self.number += 1
        self.log[self.number] = layer
        scores, foretells = tuple(0.5 for _ in parts), bool(self.sizes.wishes)
        post = Post(layer, parts, scores, self.number, 0.0, has_input=foretells)
        self.posts[layer] = self.number, post

    def _products(self, entries: list[Entry]) -> Steps:
        """All threads take parts, until all parts are done."""
        waiting = list(entries)
        threads = [self._thread(waiting) for _ in range(self.sizes.threads)]
        conditions = [next(thread, None) for thread in threads]
        while any(condition is not None for condition in conditions):
            alive = [i for i, condition in enumerate(conditions) if condition is not None]
            yield lambda: any(conditions[i]() for i in alive)  # type: ignore[misc]  # noqa: B023
            ready = [i for i in alive if conditions[i]()]  # type: ignore[misc]
            which = self.chance.choice(ready)
            conditions[which] = next(threads[which], None)

    def _thread(self, waiting: list[Entry]) -> Steps:
        while waiting:
            entry = waiting.pop(0)
            yield lambda: entry in self.table or self.aborted  # noqa: B023
            slot = self.table.get(entry)
            if slot is None:
                continue
            for _ in range(2):  # the kernel reads the weights
                yield ALWAYS
                if self.content[slot] != entry:
                    raise Broken(f"{entry} was computed with {self.content[slot]}")
            self.computed += 1

    def _reader(self) -> Steps:
        while True:
            yield lambda: self.bell > 0
            self.bell -= 1
            while True:
                yield self._locked
                self.is_locked = True
                if self.chance.random() < 0.7 and self._rests():
                    self.is_locked = False
                    break
                read = self.pool.next_read()
                glance = None if read is not None else self.pool.next_glance()
                if read is not None and self.pool.has_more:
                    self.bell += 1
                self.is_locked = False
                if read is not None:
                    yield from self._bring(read)
                elif glance is not None:
                    yield from self._look_ahead(glance)
                else:
                    break

    def _rests(self) -> bool:
        """Whether the reader leaves posts for later: all that the last needs is there."""
        written = self.posts[self.log[self.number]] if self.number else None
        is_there = written is not None and self.table.keys() >= {*written[1].entries}
        return is_there and self.pool.is_at_rest

    def _look_ahead(self, glance: Glance) -> Steps:
        yield self._locked
        self.is_locked = True
        layer, number = glance.post.layer + glance.ahead, glance.post.number
        if layer < self.sizes.layers:
            experts = self.chance.sample(range(self.sizes.experts), 2)
            self.pool.wish(layer, experts, number, glance.ahead)
        self.is_locked = False

    def _bring(self, read: Read) -> Steps:
        self.reads[read.entry] += 1
        if self.reads[read.entry] > 1 and not self.sizes.wishes and not self.sizes.faults:
            raise Broken(f"{read.entry} was read twice in a run")
        self.content[read.slot] = FIRST_BYTES
        yield ALWAYS
        fails = self.chance.random() < self.sizes.faults
        if not fails:
            self.content[read.slot] = read.entry
            if self.chance.random() < 0.5:  # by a native thread, before the pool is told
                self.publish(read.entry, read.slot)
                yield ALWAYS
        yield self._locked
        self.is_locked = True
        if fails:
            self.aborted |= self.pool.fail(read)
        else:
            self.pool.finish(read)
        self.is_locked = False

    def _wisher(self) -> Steps:
        for _ in range(self.sizes.wishes):
            for _ in range(self.chance.randint(0, 12)):
                yield ALWAYS
            yield self._locked
            self.is_locked = True
            experts = self.chance.sample(range(self.sizes.experts), 2)
            self.pool.wish(self.chance.randrange(self.sizes.layers), experts)
            self.is_locked = False
            self.bell += 1
        yield lambda: False

    def check_slots(self) -> None:
        """Every slot has one owner, and what the program finds is what the pool says."""
        resident = self.pool.resident
        slots = [*resident.values(), *self.pool._reading.values(), *self.pool._free]
        if sorted(slots) != list(range(self.sizes.slots)):
            raise Broken(f"slots {sorted(slots)} of {self.sizes.slots}")
        table = {e: slot for e, slot in self.table.items() if self.pool._reading.get(e) != slot}
        if resident != table:
            raise Broken(f"resident {resident} and in the table {table}")


WORLDS = {
    "tight": Sizes(slots=3),
    "roomy": Sizes(slots=5, most=4),
    "one thread": Sizes(slots=3, threads=1, readers=1),
    "waves": Sizes(slots=2, most=4, wave=1, runs=2),
    "waves of two": Sizes(slots=3, experts=6, most=6, wave=2, runs=2, readers=3),
    "no more than a wave": Sizes(slots=2, most=4, wave=2, runs=2),
    "wishes": Sizes(slots=4, wishes=4),
    "wishes from afar": Sizes(slots=5, layers=4, wishes=1, spare=1),
    "spare": Sizes(slots=5, most=4, spare=1, wishes=2),
    "spare in waves": Sizes(slots=4, most=4, wave=2, readers=3, wishes=3, faults=0.1, spare=2),
    "wishes in waves": Sizes(slots=3, layers=1, most=4, wave=2, readers=3, wishes=6),
    "layers again": Sizes(slots=6, most=4, repeats=3, wishes=3, spare=1),
    "layers again in waves": Sizes(slots=3, most=4, wave=2, repeats=2, wishes=2, faults=0.1),
    "layers again, each read once": Sizes(slots=4, most=4, repeats=3),
    "faults": Sizes(slots=3, faults=0.3),
    "all of it": Sizes(slots=3, most=4, wave=2, wishes=3, faults=0.2),
}


def explore(name: str, seeds: range, pool: type[Pool] = Pool, world: type[World] = World) -> None:
    for seed in seeds:
        try:
            world(WORLDS[name], seed, pool).explore()
        except Broken as error:
            raise Broken(f"{name}, seed {seed}: {error}") from error
