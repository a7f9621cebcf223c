"""Who has a slot of the store, and who goes on with whose."""

from __future__ import annotations

import weakref
from collections.abc import Iterable

from edgerun.engine.sequence import Lease, Sequence, shared_prefix
from edgerun.state import Room, StateStore


class Slots:
    """Gives slots to sequences; those that have ended and are retained keep theirs for a while.

    All of it is for the thread that holds the store's lock.
    """

    def __init__(self, store: StateStore) -> None:
        """Takes a store in which nobody else opens slots."""
        self._store = store
        self._retained: list[weakref.ref[Sequence]] = []

    def room(self, preempted: Iterable[Sequence] = ()) -> Room:
        """What sequences can have, once these and all that are retained have left their slots."""
        leases = [sequence.lease for sequence in [*self._leased(), *preempted]]
        return self._store.room([lease.slot for lease in leases if lease is not None])

    def give(self, sequence: Sequence) -> None:
        """Gives a slot to a sequence, with what is stored of its ids.

        Those whose logits are wanted are computed, stored or not.

        Raises:
            InputError: every slot is in use by sequences that have not ended.
        """
        ids = sequence.ids[: sequence.logits_from]
        previous = _leased_before(sequence)
        if previous is not None and previous.lease is not None:
            shared = shared_prefix(previous.ids[: previous.cached], ids)
            lease, previous.lease = previous.lease, None
            sequence.cached = self._store.rewind(lease.slot, shared)
        else:
            while not self._store.room().slots and self.evict():
                pass
            lease = Lease()
            lease.slot, sequence.cached = self._store.match(ids, lease)
        sequence.previous, sequence.lease = None, lease

    def end(self, sequence: Sequence) -> None:
        """Lets a sequence that has ended keep its slot, if it is retained, or takes it back."""
        if sequence.is_retained:
            self._retained.append(weakref.ref(sequence))
        else:
            take_back(sequence)

    def evict(self) -> bool:
        """Takes the slot of the sequence that ended first; False if no such has one."""
        retained = self._leased()
        if retained:
            take_back(retained[0])
        return bool(retained)

    def _leased(self) -> list[Sequence]:
        """Retained sequences that have a slot, and that somebody still has."""
        alive = [sequence for sequence in (get() for get in self._retained) if sequence]
        leased = [sequence for sequence in alive if sequence.lease]
        self._retained = [weakref.ref(sequence) for sequence in leased]
        return leased


def take_back(sequence: Sequence) -> None:
    """Ends the stay of a sequence in its slot."""
    lease, sequence.lease, sequence.cached = sequence.lease, None, 0
    if lease is not None:
        lease.is_open = False


def _leased_before(sequence: Sequence) -> Sequence | None:
    """The one before a sequence, or before one that never began, if it has its slot."""
    previous = sequence.previous
    while previous is not None and previous.lease is None:
        previous = previous.previous
    return previous
