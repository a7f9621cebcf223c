"""What segments of a plan take, call by call, while somebody asks."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from edgerun.backends.base import NO_VALUES, Executable, Shape, Values
from edgerun.plan.plans import Segment
from edgerun.plan.tasks import Joined
from edgerun.state import Batch, SequenceStore


@dataclass(frozen=True, slots=True)
class MeteredCall:
    """One call of a segment's program.

    Attributes:
        rows: of the batch.
        logit_rows: of these, those whose logits were wanted.
        cached: tokens before the first of them.
        seconds: that it took.
    """

    rows: int
    logit_rows: int
    cached: int
    seconds: float


@dataclass(slots=True)
class Meter:
    """The calls of a segment.

    Attributes:
        part: of the work, a phase or ``plans.PROMPTS``.
        segment: that ran.
        shape: of the batches that its program takes.
        title: names of the back-ends that compute it.
        calls: since they were asked for.
    """

    part: str
    segment: Segment
    shape: Shape
    title: str
    calls: list[MeteredCall] = field(default_factory=list)

    @property
    def measured_s(self) -> float:
        """Seconds of all calls."""
        return sum(call.seconds for call in self.calls)


class Meters:
    """The meters of a model's programs; they count while they are read."""

    def __init__(self) -> None:
        """There are none yet."""
        self._all: list[Meter] = []
        self._is_read = False

    def add(self, part: str, joined: Joined, shape: Shape, program: Executable) -> Executable:
        """The program, whose calls count from now on while meters are read."""
        meter = Meter(part, joined.segment, shape, joined.title)
        self._all.append(meter)
        return _Metered(program, meter, self)

    @property
    def is_read(self) -> bool:
        """Whether calls count."""
        return self._is_read

    @contextmanager
    def reading(self) -> Iterator[list[Meter]]:
        """Counts calls meanwhile; yields all meters there are then, from zero on."""
        for meter in self._all:
            meter.calls.clear()
        self._is_read = True
        try:
            yield self._all
        finally:
            self._is_read = False


class _Metered(Executable):
    def __init__(self, program: Executable, meter: Meter, meters: Meters) -> None:
        self._program, self._meter, self._meters = program, meter, meters
        self.launches, self.is_layered = program.launches, program.is_layered

    def __call__(self, batch: Batch, cache: SequenceStore, values: Values = NO_VALUES) -> Values:
        """Runs the program; see ``Executable``."""
        if not self._meters.is_read:
            return self._program(batch, cache, values)
        began = time.perf_counter()
        outputs = self._program(batch, cache, values)
        seconds = time.perf_counter() - began
        cached = int(batch.positions[0]) if batch.rows else 0
        call = MeteredCall(batch.rows, len(batch.logit_rows), cached, seconds)
        self._meter.calls.append(call)
        return outputs

    def close(self) -> None:
        """Closes the program."""
        self._program.close()
