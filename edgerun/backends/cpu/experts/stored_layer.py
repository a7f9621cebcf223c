"""A layer whose experts are read while programs run."""

from __future__ import annotations

from dataclasses import dataclass, field

from edgerun.backends.cpu.experts.filler import SlotFiller
from edgerun.backends.cpu.experts.slot_readers import Job
from edgerun.backends.cpu.experts.source import ExpertSource


@dataclass(frozen=True, slots=True)
class StoredLayer:
    """What a layer's experts are read with.

    Attributes:
        name: of the layer.
        filler: puts experts into slots.
        source: where they are read from.
    """

    name: str
    filler: SlotFiller
    source: ExpertSource
    _jobs: dict[int, Job | None] = field(default_factory=dict)

    def job(self, expert: int) -> Job | None:
        """How an expert is brought into a slot natively; None where that cannot be."""
        if expert not in self._jobs:
            self._jobs[expert] = self._make_job(expert)
        return self._jobs[expert]

    def _make_job(self, expert: int) -> Job | None:
        read = self.source.direct_read(expert)
        if read is None:
            return None
        stored = self.source.stored(expert)
        steps = self.filler.steps(stored)
        return None if steps is None else Job.of(read, steps, len(stored.matrices))
