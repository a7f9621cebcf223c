"""What back-ends say of what they did so far."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Report:
    """What a device did, as a table.

    Attributes:
        title: what the figures are, and whether they were simulated, measured or modelled.
        rows: figures by name; all rows have the same names.
        notes: what else there is to say, a line each.
    """

    title: str
    rows: Sequence[Mapping[str, Any]] = ()
    notes: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Handover:
    """Keys and values that a device's calls moved so far.

    Attributes:
        seconds: out of pages, between calls of the device, and into pages.
        overlapped_s: of these, while the device computed.
    """

    seconds: float
    overlapped_s: float


@dataclass(frozen=True, slots=True)
class ExpertReads:
    """What became of the experts that calls needed so far, where not all are in memory.

    Attributes:
        hits: of them were in memory.
        misses: were not.
        read_bytes: read from the disk.
        waited_s: seconds in which a thread or more waited for them.
        guessed: needed in layers of which was guessed before what they would need.
        foreseen: of these, in the guess.
        early: reads that began before anybody asked.
        wasted: of these, not needed then.
    """

    hits: int
    misses: int
    read_bytes: int
    waited_s: float
    guessed: int = 0
    foreseen: int = 0
    early: int = 0
    wasted: int = 0

    def since(self, before: ExpertReads) -> ExpertReads:
        """What became of those since an earlier moment."""
        pairs = zip(astuple(self), astuple(before), strict=True)
        return ExpertReads(*(now - then for now, then in pairs))

    @property
    def hit_share(self) -> float:
        """Of the experts that were needed, how many were in memory."""
        return self.hits / max(1, self.hits + self.misses)

    @property
    def recall(self) -> float | None:
        """Of the experts that were guessed at, how many were foreseen; None without a guess."""
        return self.foreseen / self.guessed if self.guessed else None
