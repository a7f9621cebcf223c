"""Whether cutting an expert pays, by what calls took with and without.

The schedule says what a cut saves if processor and device compute as fast as they do apart. Where
they share memory, or answer late in mid-layer, it costs instead; and as costs are re-estimated from
calls that were cut, the schedule never learns that whole ones are faster. So both are tried.
"""

from __future__ import annotations

from collections import defaultdict

from edgerun.machine.average import Average

ENOUGH = 8  # calls of either kind, before they are compared
TRIAL = 32  # one of so many calls goes the way that has lost, or seems slower


class Trials:
    """Seconds a place, cut and whole, of calls of about the same number of rows.

    Calls count only where the schedule would cut.
    """

    def __init__(self) -> None:
        """Knows nothing yet, and so tries both in turn."""
        self._averages: defaultdict[int, tuple[Average, Average]] = defaultdict(
            lambda: (Average(), Average())
        )

    def favours_cut(self, rows: int) -> bool:
        """Whether the next call of so many rows is to be cut."""
        whole, cut = self._averages[rows.bit_length()]
        if min(whole.count, cut.count) < ENOUGH:
            return cut.count <= whole.count
        is_trial = (whole.count + cut.count) % TRIAL == 0
        return (cut.value < whole.value) != is_trial

    def observe(self, rows: int, seconds: float, places: int, *, is_cut: bool) -> None:
        """A call has taken so long for so many places."""
        self._averages[rows.bit_length()][is_cut].add(seconds / places)
