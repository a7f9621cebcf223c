"""Which of two ways to compute a layer pays, by what calls took with either.

The schedule says what a cut saves if processor and device compute as fast as they do apart. Where
they share memory, or answer late in mid-layer, it costs instead; and as costs are re-estimated from
calls that were cut, the schedule never learns that whole ones are faster. So both are tried. The
same goes for layers that are shared and for those that are the processor's alone.
"""

from __future__ import annotations

from collections import defaultdict

from edgerun.machine.average import Average

ENOUGH = 8  # calls of either kind, before they are compared
LOOK = 4  # one of so many calls is looked at for the way that has lost
TRIAL = 32  # one of so many calls goes the way that has lost, or seems slower


class Trials:
    """Seconds a place the usual way and the other, of calls of about the same number of rows."""

    def __init__(self, trial: int = TRIAL) -> None:
        """Knows nothing yet, and so tries both in turn.

        Args:
            trial: one of so many calls goes the way that has lost.
        """
        self._trial, self._passed = trial, 0
        self._averages: defaultdict[int, tuple[Average, Average]] = defaultdict(
            lambda: (Average(), Average())
        )

    def weighs(self, rows: int) -> bool:
        """Whether it is worth finding out if the next call of so many rows could go the other way.

        Where the usual way has been faster, one call in ``LOOK`` is, so that the other is tried.
        """
        usual, other = self._averages[rows.bit_length()]
        if min(usual.count, other.count) < ENOUGH or other.value < usual.value:
            return True
        self._passed += 1
        return self._passed % LOOK == 0

    def favours_other(self, rows: int) -> bool:
        """Whether the next call of so many rows is to go the other way."""
        usual, other = self._averages[rows.bit_length()]
        if min(usual.count, other.count) < ENOUGH:
            return other.count <= usual.count
        is_trial = (usual.count + other.count) % self._trial == 0
        return (other.value < usual.value) != is_trial

    def observe(self, rows: int, seconds: float, places: int, *, is_other: bool) -> None:
        """A call has taken so long for so many places."""
        self._averages[rows.bit_length()][is_other].add(seconds / places)
