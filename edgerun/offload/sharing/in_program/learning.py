"""What is learned of layers that were shared inside a program, once a run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from edgerun.kernels.run import commands as words
from edgerun.offload.cache import Step
from edgerun.offload.divider import Prices
from edgerun.offload.estimates import Estimates
from edgerun.offload.floors import Busy
from edgerun.offload.sharing.in_program.helper import LayerWords
from edgerun.offload.sharing.tally import Tally

NANOSECOND = 1e-9
TALLIED = {
    "layers": words.LAYERS,
    "rows": words.ROWS,
    "cached": words.EXPERTS_THERE,
    "here": words.EXPERTS_HERE,
    "early": words.EARLY,
    "checked": words.CHECKED,
    "with_device": words.WITH_DEVICE,
}
CPU_SUMS = words.CPU_COST_SUM, words.CPU_SUM
DEVICE_SUMS = words.DEVICE_COST_SUM, words.DEVICE_SUM
TALLIED_S = {
    "planned_s": words.PLANNED_SUM,
    "bound_s": words.BOUND_SUM,
    "certified_s": words.CERTIFICATE_SUM,
    "seconds": words.SECONDS_SUM,
}


class Learner:
    """Takes what the program added up, and has prices follow it."""

    def __init__(
        self,
        layers: Sequence[LayerWords],
        totals: NDArray[np.int64],
        prices: Prices,
        estimates: Estimates,
        tally: Tally,
        rows: int,
    ) -> None:
        """Takes what a program of up to so many rows writes, and what is learned by it."""
        self._layers, self._totals, self._prices = layers, totals, prices
        self._estimates, self._tally = estimates, tally
        self._seen: list[int] = totals.tolist()
        self._kinds = [1 << kind for kind in range((rows - 1).bit_length() + 1)]  # of rows

    def price(self) -> None:
        """Before a run: layers are divided by what is learned by now."""
        self._prices.update(self._kinds)

    def learn(self) -> int:
        """Learns what the runs since the last time took; how many layers there were."""
        seen: list[int] = self._totals.tolist()
        new = [now - before for now, before in zip(seen, self._seen, strict=True)]
        self._seen = seen
        layers = new[words.LAYERS]
        if not layers:
            return 0
        tally, estimates = self._tally, self._estimates
        for name, total in TALLIED.items():
            setattr(tally, name, getattr(tally, name) + new[total])
        for name, total in TALLIED_S.items():
            setattr(tally, name, getattr(tally, name) + new[total] * NANOSECOND)
        taking_s = new[words.TAKING_SUM] * NANOSECOND
        tally.around_s += taking_s
        tally.native_s += taking_s + new[words.START_SUM] * NANOSECOND
        cpu, device = estimates.cpu, estimates.device
        expected_s, taken_s = (new[each] * NANOSECOND for each in CPU_SUMS)
        cpu.observe_kinds(kinds_in(seen[words.CPU_KINDS_SEEN]), expected_s, taken_s)
        if commands := new[words.WITH_DEVICE]:
            expected_s, taken_s = (new[each] * NANOSECOND for each in DEVICE_SUMS)
            device.observe_kinds(kinds_in(seen[words.DEVICE_KINDS_SEEN]), expected_s, taken_s)
            estimates.start.observe_one(new[words.START_SUM] * NANOSECOND / commands)
            estimates.command.observe_one(new[words.COMMAND_SUM] * NANOSECOND / commands)
        self._totals[[words.CPU_KINDS_SEEN, words.DEVICE_KINDS_SEEN]] = 0
        if new[words.LEASTS]:
            self._lower()
        return layers

    def spend(self, seconds: float, layers: int) -> None:
        """Learns what it took to learn, of so many layers."""
        self._tally.around_s += seconds
        self._estimates.around.observe_one(seconds / layers)

    def steps(self) -> Iterator[tuple[Step, int]]:
        """What layers needed of the last run, with how many of it the processor computed.

        Those of the processor come first. Of a layer that went wrong there are none.
        """
        for layer in self._layers:
            told = layer.words.tolist()
            active = told[words.ACTIVE]
            experts = told[words.LAYER_WORDS : words.LAYER_WORDS + active]
            scores = layer.scores.tolist()[:active]
            yield Step(layer.number, tuple(experts), tuple(scores)), active - told[words.THERE]

    def _lower(self) -> None:
        """Lowers leasts by layers that took less than ever."""
        floors = self._estimates.floors
        for layer in self._layers:
            told = layer.words.tolist()
            active, there = told[words.ACTIVE], told[words.THERE]
            if not active or not told[words.IS_LEAST]:
                continue
            here = active - there
            rows = told[words.LAYER_WORDS + active : words.LAYER_WORDS + 2 * active]
            is_checked = there and told[words.IS_CHECKED]
            cpu_s = 0.0 if is_checked else told[words.CPU_NS] * NANOSECOND
            shares = [0.0] * here + [1.0] * there
            busy = Busy(cpu_s, told[words.DEVICE_NS] * NANOSECOND)
            floors.observe(rows, shares, [True] * active, busy)


def kinds_in(bits: int) -> list[int]:
    """The numbers of the bits that are set.

    >>> kinds_in(0b1001)
    [0, 3]
    """
    return [kind for kind in range(bits.bit_length()) if bits >> kind & 1]
