"""Exploring the pool of experts finds mistakes: pools that make one each are found out."""

from __future__ import annotations

from collections import deque

import pytest

from edgerun.backends.cpu.experts.pool import Pool
from edgerun.backends.cpu.experts.protocol import Entry, Read
from tests.support.pool_model import ALWAYS, Broken, Steps, World, explore


class EvictsWhateverWasPosted(Pool):
    """Does not ask whether the program has posted since."""

    def _make_room(self, slots: int, *, for_wish: bool = False) -> None:
        words, self._words = self._words, _Forced(self._words)  # type: ignore[arg-type]
        super()._make_room(slots, for_wish=for_wish)
        self._words = words


class _Forced:
    """Words of which the number of the last post is always right."""

    def __init__(self, words: World) -> None:
        self._words, self.done, self.over = words, words.done, words.over

    def evict(self, entry: Entry, number: int) -> bool:
        return self._words.evict(entry, self._words.number)


class EvictsTheNeeded(Pool):
    def _needed(self) -> set[Entry]:
        return set()


class KeepsWhatIsDoneWith(Pool):
    """The experts of earlier waves stay."""

    def _needed(self) -> set[Entry]:
        return set(self._live.entries) if self._live else set()


class PublishesFirst(Pool):
    """The word is set before the weights are there."""

    def next_read(self) -> Read | None:
        read = super().next_read()
        if read is not None:
            self._words.publish(read.entry, read.slot)
        return read


class ReadsTwice(Pool):
    def _is_absent(self, entry: Entry) -> bool:
        return entry not in self._resident


class LosesSlots(Pool):
    def fail(self, read: Read) -> bool:
        is_waited_for = super().fail(read)
        self._free.pop()
        return is_waited_for


class KeepsQuiet(Pool):
    """Nobody learns that a read has failed."""

    def fail(self, read: Read) -> bool:
        super().fail(read)
        return False


class KeepsWhatCameTooEarly(Pool):
    """Experts of later waves leave no slot to those of the first."""

    def _make_room_in_order(self) -> None:
        pass


class TakesEveryLayerForANewRun(Pool):
    """What a layer brought may leave before it comes again."""

    def _settle(self) -> None:
        self.repeats = False
        super()._settle()


class ForgetsWhatIsMissing(Pool):
    def _next_missing(self) -> Entry | None:
        entry = super()._next_missing()
        self._missing = deque(list(self._missing)[:1])
        return entry


MUTANTS = {
    EvictsWhateverWasPosted: "wishes",
    EvictsTheNeeded: "tight",
    KeepsWhatIsDoneWith: "waves",
    PublishesFirst: "tight",
    ReadsTwice: "all of it",
    LosesSlots: "faults",
    KeepsQuiet: "faults",
    KeepsWhatCameTooEarly: "wishes in waves",
    TakesEveryLayerForANewRun: "layers again, each read once",
    ForgetsWhatIsMissing: "waves of two",
}


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.__name__)
def test_exploring_finds_every_mistake(mutant: type[Pool]) -> None:
    with pytest.raises((Broken, KeyError, IndexError)):
        explore(MUTANTS[mutant], range(2000), mutant)


class SaysLateWhatIsDone(World):
    """A layer posts while it still says of its last post how much of it is done with."""

    def _post(self, layer: int, parts: tuple[int, ...]) -> Steps:
        self.publish_post(layer, parts)
        yield ALWAYS


@pytest.mark.parametrize("name", ["waves", "no more than a wave", "waves of two"])
def test_exploring_finds_a_post_that_is_done_with_too_early(name: str) -> None:
    with pytest.raises(Broken, match="evicted while it was needed"):
        explore(name, range(2000), world=SaysLateWhatIsDone)
