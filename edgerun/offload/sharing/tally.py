"""What a device did, counted as it goes."""

from __future__ import annotations

from dataclasses import dataclass

from edgerun.backends.base import Phase


@dataclass(slots=True)
class Tally:
    """Layers of one phase.

    Attributes:
        phase: of the batches.
        layers: divided.
        with_device: of these, those of which the device computed something.
        rows: in these.
        cached: experts that it had.
        cut: layers of which one expert was computed by both.
        uploaded: experts that it got for them.
        here: experts that the processor computed.
        planned_s: that the schedules said.
        bound_s: that no schedule could have fallen below, by the same estimates.
        certified_s: the same by the least costs that were ever seen (``offload/floors.py``).
        early: layers that ended before that, as something took less than ever.
        seconds: from the beginning of a layer until both had computed what was theirs.
        around_s: what calls took besides.
        native_s: what instructions took that gave experts away and took results, of layers that
            were shared inside programs.
        checked: results that were computed here, too, and were the same.
    """

    phase: Phase
    layers: int = 0
    rows: int = 0
    cached: int = 0
    uploaded: int = 0
    cut: int = 0
    here: int = 0
    planned_s: float = 0.0
    bound_s: float = 0.0
    certified_s: float = 0.0
    early: int = 0
    seconds: float = 0.0
    around_s: float = 0.0
    native_s: float = 0.0
    checked: int = 0
    with_device: int = 0

    def row(self) -> dict[str, str | int | float]:
        """A row of the report."""
        experts = max(1, self.cached + self.uploaded + self.here)
        each = 1e3 / self.layers
        return {
            "phase": self.phase.value,
            "layers": self.layers,
            "rows": self.rows,
            "there": f"{self.cached / experts:.0%}",
            "uploaded": f"{self.uploaded / experts:.0%}",
            "cut": f"{self.cut / self.layers:.0%}",
            "on the CPU": f"{self.here / experts:.0%}",
            "ms a layer": round(each * self.seconds, 3),
            "planned": round(each * self.planned_s, 3),
            "bound": round(each * self.bound_s, 3),
            "certificate": round(each * self.certified_s, 3),
            "before it": self.early,
            "besides": round(each * self.around_s, 3),
        }
