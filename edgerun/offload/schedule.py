"""Which experts of a layer the processor computes and which a device, and how good that is.

The machine has three resources, each of which does one thing at a time without pause: the
**processor**, which has the weights of all experts; a **device** with those of some of them, the
cached ones; and the **link**, which uploads others to it. They work at the same time. Expert ``i``
takes ``c_i`` seconds on the processor or ``g_i`` on the device, and its upload ``t_i`` on the link,
0 if it is cached. An expert may be cut by columns into ``parts`` equal parts, each of which takes
its share of all three. The device begins with what is cached; then come uploads in the order in
which they are made, each of which must have ended before its product begins. A layer is done when
processor and device are. What a call costs before either begins is not in it, nor in the bound,
which holds without; ``Schedule.seconds`` adds it.

**Division.** Experts are sorted by what the device gains: cached ones by ``c / g``, others by
``c / t`` and then ``c / g``. The device gets the first so many parts of each, and uploads are made
in that order or the other way round. All pairs of such thresholds are looked at, in time linear in
their number: the more is uploaded, the fewer cached parts can be best. At one row all experts cost
the same, so that this is the best of all schedules of whole parts; in general it is the best of
those.

**Bound.** For any weights ``u + v + w = 1`` of processor, device and link no schedule, however it
cuts, ends before ``sum_i min(u * c_i, v * g_i + w * t_i)``: it ends after each resource does, so
after their weighted mean, and of each expert every part is in one place or the other. The largest
such sum is the optimum of the linear program without the order of uploads (its dual). Weights are
part of a schedule, so that its bound can be added up by anybody.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from edgerun.errors import InputError
from edgerun.kernels.experts.division import (
    COST_WORDS,
    CPU,
    DEVICE,
    MAX_COST,
    MAX_EXPERTS,
    RESULT_WORDS,
    UPLOAD,
    WEIGHT_SUM,
)
from edgerun.kernels.jit.service import compiled, native

F64: TypeAlias = NDArray[np.float64]
I64: TypeAlias = NDArray[np.int64]
MAX_PARTS = 64
NANOSECONDS = 1e9


class Starts(NamedTuple):
    """Seconds that pass before a call that uses the device does anything.

    Attributes:
        cpu_s: before the processor multiplies.
        device_s: before the device does.
        upload_s: before the device multiplies by what it lacked, beside the uploads.
    """

    cpu_s: float
    device_s: float
    upload_s: float


@dataclass(frozen=True, slots=True)
class Schedule:
    """How the experts of a layer are divided.

    Attributes:
        shares: parts of each expert that the device computes, int64 ``[experts]``.
        order: of the experts that it computes, cached ones first, then in that of the uploads.
        makespan_s: when the last resource is done.
        bound_s: no schedule is done before that.
        weights: of processor, device and link in the bound; their sum is ``WEIGHT_SUM``.
    """

    shares: I64
    order: I64
    makespan_s: float
    bound_s: float
    weights: tuple[int, ...]

    def seconds(self, costs: Sequence[F64] | F64, parts: int, starts: Starts) -> float:
        """When it is done if nothing begins at once.

        Args:
            costs: seconds of experts on processor, device and link.
            parts: of an expert.
            starts: what passes before that, if the device has anything to do.
        """
        share = self.shares / parts
        cpu, device, upload = (np.asarray(each) for each in costs)
        here_s = float((cpu * (1 - share)).sum())
        if not len(self.order):
            return here_s
        device, upload = ((each * share)[self.order] for each in (device, upload))
        left = np.cumsum(device[::-1])[::-1]  # from each product on
        begins = np.where(upload > 0, starts.upload_s + np.cumsum(upload), 0.0)
        there_s = max(float(left[0]) + starts.device_s, float((begins + left).max()))
        return max(here_s + starts.cpu_s, there_s)

    def alone(self, seconds: float) -> Schedule:
        """The same experts on the processor alone, in so long; no bound changes by that."""
        nothing = np.zeros_like(self.shares)
        return Schedule(nothing, nothing[:0], seconds, self.bound_s, self.weights)


class Scheduler:
    """Divides layers; its memory is made once."""

    def __init__(self, experts: int, parts: int = 1) -> None:
        """Prepares for layers with rows for up to ``experts`` experts.

        Args:
            experts: the most.
            parts: that an expert can be cut into.

        Raises:
            InputError: these are no such numbers.
        """
        if not (0 < experts <= MAX_EXPERTS and 0 < parts <= MAX_PARTS):
            raise InputError(
                f"a schedule of {experts} experts in {parts} parts; expected up to {MAX_EXPERTS} "
                f"experts and up to {MAX_PARTS} parts"
            )
        self._parts = parts
        self._seconds = np.zeros((experts, COST_WORDS))
        self._costs = np.zeros((experts, COST_WORDS), np.int64)
        self._order, self._shares = np.zeros((2, experts), np.int64)
        self._result = np.zeros(RESULT_WORDS, np.int64)
        arrays = (self._costs, self._order, self._shares, self._result)
        addresses = [array.ctypes.data for array in arrays]
        names = compiled("expert_schedule").signature.names
        assert names == ("experts", "room", "parts", "costs", "order", "shares", "result")
        self._arguments = np.array([0, 0, parts, *addresses], np.int64)
        self._address = self._arguments.ctypes.data
        self._divide = native("expert_schedule")

    def __call__(
        self, cpu_s: ArrayLike, device_s: ArrayLike, upload_s: ArrayLike, room: int = MAX_EXPERTS
    ) -> Schedule:
        """Divides a layer.

        Args:
            cpu_s: seconds that each active expert takes on the processor, ``[experts]``.
            device_s: the same on the device.
            upload_s: the same on the link; 0 for one that is on the device.
            room: experts that may be uploaded, in parts or whole.

        Raises:
            InputError: there are more experts than prepared for, or a cost is no time.
        """
        count = self._take(cpu_s, device_s, upload_s)
        self._arguments[0], self._arguments[1] = count, min(max(room, 0), count)
        self._divide(self._address, 0)
        shares, order = self._shares[:count].copy(), self._order[:count]
        makespan_ns, bound_ns, *weights = self._result.tolist()
        return Schedule(
            shares,
            order[shares[order] > 0],
            makespan_ns / (self._parts * NANOSECONDS),
            bound_ns / (WEIGHT_SUM * NANOSECONDS),
            tuple(weights),
        )

    def _take(self, *seconds: ArrayLike) -> int:
        """Writes the costs in nanoseconds, of which any time takes one; returns how many."""
        arrays = [np.asarray(each, np.float64) for each in seconds]
        shapes = {array.shape for array in arrays}
        count = arrays[0].size
        if len(shapes) > 1 or arrays[0].ndim != 1 or not 0 < count <= len(self._costs):
            raise InputError(
                f"costs of shapes {[list(array.shape) for array in arrays]}; expected one a "
                f"resource for each of 1 to {len(self._costs)} experts"
            )
        exact = self._seconds[:count]
        for resource, array in enumerate(arrays):
            exact[:, resource] = array
        least, largest = float(exact.min()), float(exact.max())
        if not (least >= 0 and largest <= MAX_COST / NANOSECONDS):  # or one is no number
            raise InputError(
                f"an expert takes {least:g} to {largest:g} s; expected times from 0 to "
                f"{MAX_COST / NANOSECONDS:g} s"
            )
        costs = self._costs[:count]
        costs[:] = np.rint(exact * NANOSECONDS)
        costs[(costs == 0) & (exact > 0)] = 1
        np.maximum(costs[:, :UPLOAD], 1, out=costs[:, :UPLOAD])
        return count


def bound(costs: I64, weights: Sequence[int]) -> int:
    """Nanoseconds, times the sum of the weights, before which no schedule is done.

    Args:
        costs: nanoseconds of each expert on processor, device and link, int64 ``[experts, 3]``.
        weights: of these; whatever they are, they make a bound.
    """
    on_cpu = costs[:, CPU] * weights[0]
    elsewhere = costs[:, DEVICE] * weights[1] + costs[:, UPLOAD] * weights[2]
    return int(np.minimum(on_cpu, elsewhere).sum())


def makespan(costs: I64, shares: I64, order: Sequence[int], parts: int) -> int:
    """Nanoseconds, times ``parts``, that a schedule takes, by the rules of the machine.

    Args:
        costs: see ``bound``.
        shares: parts of each expert that the device computes.
        order: in which it does so.
        parts: of an expert.
    """
    cpu = int((costs[:, CPU] * (parts - shares)).sum())
    link = device = 0
    for expert in order:
        share = int(shares[expert])
        link += share * int(costs[expert, UPLOAD])
        arrives = link if costs[expert, UPLOAD] else 0
        device = max(device, arrives) + share * int(costs[expert, DEVICE])
    return max(cpu, device)


def divide(costs: I64, room: int, parts: int) -> tuple[I64, list[int], int]:
    """The division in plain Python; the compiled one ends at the same nanosecond.

    Args:
        costs: see ``bound``.
        room: experts that may be uploaded.
        parts: of an expert.

    Returns:
        shares, the order of experts, and the time as of ``makespan``. Of equal ones that with the
        fewest uploads counts.
    """
    by_gain = sorted(range(len(costs)), key=lambda expert: _gain(costs, expert))
    cached = [expert for expert in by_gain if costs[expert, UPLOAD] == 0]
    others = [expert for expert in by_gain if costs[expert, UPLOAD] > 0]
    best = None
    for uploaded in range(min(len(others), room) * parts + 1):
        for retained in range(len(cached) * parts + 1):
            shares = np.zeros(len(costs), np.int64)
            shares[cached] = _first(retained, len(cached), parts)
            shares[others] = _first(uploaded, len(others), parts)
            for uploads in (others, others[::-1]):
                order = [expert for expert in [*cached, *uploads] if shares[expert]]
                time = makespan(costs, shares, order, parts)
                if best is None or time < best[2]:
                    best = shares, order, time
    assert best is not None
    return best


def _gain(costs: I64, expert: int) -> tuple[Fraction, Fraction]:
    cpu, device, upload = costs[expert].tolist()
    return Fraction(upload, cpu), Fraction(device, cpu)


def _first(parts_taken: int, experts: int, parts: int) -> I64:
    """Parts of each expert if so many are taken from the first on."""
    return np.clip(parts_taken - parts * np.arange(experts), 0, parts)
