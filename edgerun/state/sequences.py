"""The store that everything runs on: slots, and parts that keep what layers remember."""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable, Sequence
from copy import copy as shallow

from edgerun.errors import Full, InputError, PromptError
from edgerun.state.capacity import (
    make_arrays,
    make_pools,
    sequence_bytes,
    spare_pages,
    spare_places,
)
from edgerun.state.fair_lock import FairLock
from edgerun.state.memory import Memory
from edgerun.state.paged import PAGE_TOKENS, PagePool, Transfer
from edgerun.state.parts import Part
from edgerun.state.policies.registry import policy_named
from edgerun.state.prefixes import ROOT, Key, chain
from edgerun.state.recurrent import RecurrentArrays
from edgerun.state.spec import State
from edgerun.state.store import Block, Holder, Owner, Room, Slot

NO_PAGES = 1 << 62  # what a store without pages has of them
_VERSIONS = itertools.count(1)  # of all stores: no two slots ever have the same


class SequenceStore:
    """States of several sequences; see ``StateStore``, which says what the methods mean.

    Layers of equal geometry and window share a pool of pages. Ctrl-C may come between any two
    lines here; see ``PagePool``.

    Attributes:
        states: what the layers of the model remember.
        context: most tokens of a sequence.
        lock: held by the thread that changes anything here.
    """

    def __init__(
        self,
        states: Sequence[State],
        context: int,
        slots: int = 1,
        *,
        memory: Memory | None = None,
        eviction: str = "lru",
        transfer: Transfer | None = None,
    ) -> None:
        """Reserves address space for ``slots`` sequences of ``context`` tokens.

        Args:
            states: of the layers, whose names differ.
            context: most tokens of a sequence.
            slots: most sequences.
            memory: from which pages are taken; without limits unless given.
            eviction: name of the policy by which pages go that nobody uses (``policies``).
            transfer: moves blocks of keys and values; NumPy unless given.

        Raises:
            InputError: a number is not positive, there is no such policy, two layers have one name,
                or there is no memory for one sequence.
        """
        if context < 1 or slots < 1:
            raise InputError(
                f"cache of {slots} sequences of {context} tokens: both must be at least 1"
            )
        self.states, self.context, self.lock = tuple(states), context, FairLock()
        self._memory = memory = memory or Memory()
        policy = policy_named(eviction)
        self._pools = make_pools(self.states, context, slots, memory, policy, transfer)
        self._recurrent = make_arrays(self.states, slots, memory)
        self._sequence_bytes = sequence_bytes(self.states, context)
        self._parts: list[Part] = [*self._pools, *self._recurrent]
        self._part_of = {state.name: part for part in self._parts for state in part.states}
        if len(self._part_of) != len(self.states):
            raise InputError(f"two layers keep their state under one name: {self.states}")
        for pool in self._pools:
            pool.reclaim = self._collect
        self._holders: list[Holder] = [_nobody] * slots
        self._filled = [False] * slots
        self._lengths = [0] * slots
        self._versions = [0] * slots
        self._keys: list[list[Key]] = [[] for _ in range(slots)]
        self._tails: list[tuple[int, ...]] = [()] * slots
        self._last_pages: dict[Key, tuple[tuple[int, ...], Key]] = {}

    def pool(self, name: str) -> PagePool:
        """The pool that holds a layer's keys and values.

        Raises:
            InputError: no layer of this name has any.
        """
        part = self._part_of.get(name)
        if not isinstance(part, PagePool):
            raise InputError(f"no layer '{name}' keeps keys and values here")
        return part

    def recurrent(self, name: str) -> RecurrentArrays:
        """What holds a layer's state of fixed size.

        Raises:
            InputError: no layer of this name has any.
        """
        part = self._part_of.get(name)
        if not isinstance(part, RecurrentArrays):
            raise InputError(f"no layer '{name}' keeps a state of fixed size here")
        return part

    def length(self, slot: Slot) -> int:
        """Tokens that a slot holds."""
        return self._lengths[slot]

    def version(self, slot: Slot) -> int:
        return self._versions[slot]

    def room(self, without: Sequence[Slot] = ()) -> Room:
        return self.lock.run(self._room, without)

    def _room(self, without: Sequence[Slot]) -> Room:
        self._collect()
        slots = sum(not self._in_use(slot) for slot in range(len(self._holders))) + len(without)
        for arrays in self._recurrent:
            if self._is_scarce():
                arrays.forget_copies()
            slots = min(slots, spare_places(arrays, self._memory, without))
        if not self._pools:
            return Room(slots, NO_PAGES, 0)
        pages, of_sequence = spare_pages(self._pools, self._memory, without)
        return Room(slots, pages, PAGE_TOKENS, of_sequence)

    def open(self, owner: Owner | None = None) -> Slot:
        return self.lock.run(self._open, owner)

    def _open(self, owner: Owner | None) -> Slot:
        self._collect()
        for slot in range(len(self._holders)):
            if not self._in_use(slot):
                self._changed(slot)
                self._holders[slot] = weakref.ref(owner) if owner else _caller
                return slot
        raise InputError(
            f"all {len(self._holders)} sequences of the KV cache are in use: close a session "
            "or a stream, or load the model with a larger max_sessions"
        )

    def close(self, slot: Slot) -> None:
        """See ``StateStore``; for a slot that has no owner."""
        self._holders[slot] = _nobody

    def fork(
        self, slot: Slot, length: int | None = None, owner: Owner | None = None
    ) -> tuple[Slot, int]:
        return self.lock.run(self._fork, slot, length, owner)

    def _fork(self, source: Slot, length: int | None, owner: Owner | None) -> tuple[Slot, int]:
        current = self._lengths[source]
        asked = current if length is None else length
        if not 0 <= asked <= current:
            raise InputError(
                f"a fork of {asked} tokens from a sequence of {current}; expected 0 to {current}"
            )
        slot, reached, keys = self._open(owner), self._reachable(source, asked), self._keys[source]
        self._filled[slot] = True
        try:
            for part in self._parts:
                part.share(source, slot, reached, current, keys)
        except Full:
            self._holders[slot] = _nobody
            raise
        self._set(slot, reached, keys)
        return slot, reached

    def match(self, ids: Sequence[int], owner: Owner | None = None) -> tuple[Slot, int]:
        return self.lock.run(self._match, ids, owner)

    def _match(self, ids: Sequence[int], owner: Owner | None) -> tuple[Slot, int]:
        slot = self._open(owner)
        keys, length = self._stored(ids)
        length = self._agreed(length, lambda part, limit: part.findable(keys, limit))
        self._filled[slot] = True
        try:
            for part in self._parts:
                part.adopt(slot, length, keys)
        except Full:  # of what cannot be shared, so nothing is
            length = 0
            for part in self._parts:
                part.drop(slot)
        self._set(slot, length, keys)
        return slot, length

    def _stored(self, ids: Sequence[int]) -> tuple[list[Key], int]:
        """Keys of the pages that begin as ids do, and how many of the ids they hold."""
        keys: list[Key] = []
        before = ROOT
        for start in range(0, len(ids) - PAGE_TOKENS + 1, PAGE_TOKENS):
            key = chain(before, ids[start : start + PAGE_TOKENS])
            if not any(pool.holds(key) for pool in self._pools):
                break
            keys.append(key)
            before = key
        length = len(keys) * PAGE_TOKENS
        last, key = self._last_pages.get(before, ((), ROOT))
        pairs = zip(last, ids[length : length + PAGE_TOKENS], strict=False)
        alike = sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs))
        return [*keys, key], length + alike

    def reserve(self, slot: Slot, length: int) -> None:
        if length > self.context:
            raise PromptError(
                f"{length} tokens do not fit the context of {self.context}: "
                "shorten the prompt or load the model with a larger context",
                tokens=length,
                context=self.context,
            )
        self._filled[slot] = True
        try:
            self._reserve_parts(slot, length)
        except Full:
            if not any(arrays.forget_copies() for arrays in self._recurrent):
                raise
            self._reserve_parts(slot, length)

    def _reserve_parts(self, slot: Slot, length: int) -> None:
        for part in self._parts:
            part.reserve(slot, self._lengths[slot], length)

    def commit(self, slot: Slot, length: int, ids: Sequence[int] = ()) -> None:
        before, self._lengths[slot] = self._lengths[slot], length
        if ids:
            self._name_pages(slot, length, ids)
        for part in self._parts:
            part.commit(slot, length)
        pages = length // PAGE_TOKENS
        if ids and length > before + 1 and not length % PAGE_TOKENS and not pages & (pages - 1):
            self._keep_states(slot, self._keys[slot][-1])

    def _name_pages(self, slot: Slot, length: int, ids: Sequence[int]) -> None:
        keys = self._keys[slot]
        for page in range(len(keys), length // PAGE_TOKENS):
            tokens = tuple(ids[page * PAGE_TOKENS : (page + 1) * PAGE_TOKENS])
            keys.append(self._name_page(slot, page, tokens))
        self._tails[slot] = tuple(ids[len(keys) * PAGE_TOKENS : length])

    def _name_page(self, slot: Slot, page: int, tokens: tuple[int, ...]) -> Key:
        before = self._keys[slot][page - 1] if page else ROOT
        key = chain(before, tokens)
        for pool in self._pools:
            pool.name(slot, page, key)
        self._last_pages[before] = tokens, key
        self._forget_names()
        return key

    def _forget_names(self) -> None:
        """Drops last pages that no pool has, once there are many."""
        if len(self._last_pages) > 2 * sum(len(pool.page_table.flat) for pool in self._pools):
            self._last_pages = {
                before: (tokens, key)
                for before, (tokens, key) in self._last_pages.items()
                if any(pool.holds(key) for pool in self._pools)
            }

    def rewind(self, slot: Slot, length: int) -> int:
        return self.lock.run(self._rewind, slot, length)

    def _rewind(self, slot: Slot, length: int) -> int:
        current, keys = self._lengths[slot], self._keys[slot]
        reached = self._reachable(slot, max(0, min(length, current)))
        if reached <= len(keys) * PAGE_TOKENS:
            self._name_tail(slot)
        if reached < current:  # what is cut off is never kept under these keys, even by Ctrl-C
            self._keys[slot], self._tails[slot] = keys[: reached // PAGE_TOKENS], ()
        for part in self._parts:
            part.cut(slot, reached, current, keys)
        self._set(slot, reached, keys)
        return reached

    def checkpoint(self, slot: Slot) -> None:
        if self._recurrent and self._is_scarce():
            return
        for part in self._parts:
            part.checkpoint(slot, self._lengths[slot])

    def read_block(
        self, name: str, slot: Slot, start: int, stop: int, out: Block | None = None
    ) -> Block:
        return self._part(name, start, stop).read(name, slot, start, stop, out)

    def write_block(self, name: str, slot: Slot, start: int, block: Block) -> None:
        self._part(name, start, start).write(name, slot, start, block)
        if start < self._lengths[slot]:
            self._changed(slot)

    def copied(self) -> SequenceStore:
        """A store with the same content, for who wants to know what comes of it otherwise.

        What is written into one of the two does not change the other; both are to be reserved and
        committed through the original.
        """
        copy = shallow(self)
        copy._parts = [part.copied() for part in self._parts]
        copy._pools = [part for part in copy._parts if isinstance(part, PagePool)]
        copy._recurrent = [part for part in copy._parts if isinstance(part, RecurrentArrays)]
        copy._part_of = {state.name: part for part in copy._parts for state in part.states}
        return copy

    def _part(self, name: str, start: int, stop: int) -> Part:
        part = self._part_of.get(name)
        if part is None or not 0 <= start <= stop <= self.context:
            raise InputError(
                f"positions {start} to {stop - 1} of '{name}'; expected a layer of the model and "
                f"positions from 0 to {self.context - 1}"
            )
        return part

    def _reachable(self, slot: Slot, length: int) -> int:
        current, keys = self._lengths[slot], self._keys[slot]
        return self._agreed(length, lambda part, limit: part.reachable(slot, limit, current, keys))

    def _set(self, slot: Slot, length: int, keys: Sequence[Key]) -> None:
        self._lengths[slot] = length
        self._keys[slot] = list(keys[: length // PAGE_TOKENS])
        self._tails[slot] = ()
        self._changed(slot)

    def _agreed(self, length: int, longest: Callable[[Part, int], int]) -> int:
        """The longest length, up to one, that every part says it has."""
        while True:
            shorter = min((longest(part, length) for part in self._parts), default=length)
            if shorter == length:
                return length
            length = shorter

    def _name_tail(self, slot: Slot) -> Key:
        """Lets a last page that is not full be found when its slot is gone; the last page's key."""
        keys = self._keys[slot]
        if self._tails[slot]:
            return self._name_page(slot, len(keys), self._tails[slot])
        return keys[-1] if keys else ROOT

    def _keep_states(self, slot: Slot, key: Key) -> None:
        """Lets states of fixed size be found by a key, if it stands for all that a slot holds."""
        length = len(self._keys[slot]) * PAGE_TOKENS + len(self._tails[slot])
        if 0 < length == self._lengths[slot] and not self._is_scarce():
            for arrays in self._recurrent:
                arrays.keep(slot, length, key)

    def _is_scarce(self) -> bool:
        """Whether memory has no room for one sequence more, so that there are to be no copies."""
        return self._memory.left(self._sequence_bytes) < self._sequence_bytes

    def _changed(self, slot: Slot) -> None:
        self._versions[slot] = next(_VERSIONS)

    def _in_use(self, slot: Slot) -> bool:
        owner = self._holders[slot]()
        return owner is not None and owner.is_open

    def _collect(self) -> None:
        """Takes back what slots hold that are not in use."""
        for slot, filled in enumerate(self._filled):
            if filled and not self._in_use(slot):
                self._keep_states(slot, self._name_tail(slot))
                self._set(slot, 0, ())  # before Ctrl-C finds a state that is gone under its keys
                for part in self._parts:
                    part.drop(slot)
                self._filled[slot] = False


class _Caller:
    is_open = True


_CALLER = _Caller()


def _caller() -> Owner:
    """Holds a slot that has no owner, until its caller closes it."""
    return _CALLER


def _nobody() -> None:
    """Holds a slot that is not in use."""
