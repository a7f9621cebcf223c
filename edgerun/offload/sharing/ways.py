"""A layer that is shared with a device as long as that is faster than the processor alone."""

from __future__ import annotations

import time

from edgerun.backends.base import NO_VALUES, Executable, Values
from edgerun.offload.sharing.executable import SharedLayer
from edgerun.offload.sharing.trials import Trials
from edgerun.state import Batch, SequenceStore

TRIAL = 256  # one of so many calls goes the slower way: it may take several times as long


class FasterWay(Executable):
    """Runs a layer shared or on the processor alone, whichever has taken less time.

    What counts is all of a call, bookkeeping too, over all layers that have the same trials. Either
    way has the same bits.
    """

    def __init__(self, shared: SharedLayer, alone: Executable, trials: Trials) -> None:
        """Takes both programs, and the trials of all layers."""
        self.shared, self._alone, self._trials = shared, alone, trials
        self._ran: set[bool] = set()  # the ways that were gone: a first call does not count

    def __call__(self, batch: Batch, cache: SequenceStore, values: Values = NO_VALUES) -> Values:
        """Runs the layer; see ``Executable``.

        Raises:
            BackendError: the device failed, and nothing may go on in its place.
        """
        rows = max(1, len(values[self.shared.rows_name]))
        is_shared = self._trials.favours_other(rows)
        program = self.shared if is_shared else self._alone
        begin = time.monotonic()
        outputs = program(batch, cache, values)
        if is_shared in self._ran:
            self._trials.observe(rows, time.monotonic() - begin, rows, is_other=is_shared)
        self._ran.add(is_shared)
        return outputs

    def close(self) -> None:
        """Closes both programs."""
        self.shared.close()
        self._alone.close()
