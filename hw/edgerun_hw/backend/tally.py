"""Cycles that segments took on the device, and the report of them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields

from edgerun.backends.base import Phase
from edgerun.backends.figures import Report
from edgerun.graph.ir import Graph
from edgerun_hw.overlay.port import Counters

MODULUS = 1 << 32
ASSUMED_MHZ = 300
STALLS = {
    "weights": "stall_weights",
    "tables": "stall_tables",
    "output": "stall_output",
}


@dataclass
class Tally:
    """What one segment did in one phase.

    Attributes:
        phase: of the segment.
        part: what its layers are, e.g. ``"gate/up"``.
        tokens: token rows so far, whether or not the device ran them.
        counts: cycles and beats by name, as in ``port.Counters``.
    """

    phase: Phase
    part: str
    tokens: int = 0
    counts: dict[str, int] = field(default_factory=dict)

    def add(self, before: Counters, after: Counters) -> None:
        """Adds what was counted between two readings."""
        for counter in fields(Counters):
            spent = (getattr(after, counter.name) - getattr(before, counter.name)) % MODULUS
            self.counts[counter.name] = self.counts.get(counter.name, 0) + spent


def part_of(segment: Graph) -> str:
    """What a segment's layers are called, from the names of its nodes.

    Example: nodes ``/model/layers.0/mlp/gate_proj/MatMulNBits`` and ``.../up_proj/...`` make
    ``"gate/up"``; a segment that has more than linear layers is ``"program"``, and one of attention
    alone ``"attention"``.
    """
    if all(node.op == "attention" for node in segment.nodes):
        return "attention"
    if any(node.op != "linear" for node in segment.nodes):
        return "program"
    names = [node.name.strip("/").split("/") for node in segment.nodes]
    stems = [(parts[-2] if len(parts) > 1 else parts[0]) for parts in names]
    return "/".join(re.sub(r"_proj$", "", stem) for stem in stems)


def cycles_report(name: str, counted: str, tallies: Iterable[Tally]) -> Report | None:
    """A table of cycles per token by phase and part; None if nothing ran on the device.

    Args:
        name: of the device.
        counted: what its counts are, e.g. ``"simulated"``.
        tallies: of all segments.
    """
    rows = []
    ran = [tally for tally in tallies if tally.counts and tally.tokens]
    for phase in Phase:
        of_phase = [tally for tally in ran if tally.phase is phase]
        parts = dict.fromkeys(tally.part for tally in of_phase)
        for part in parts:
            same = [tally for tally in of_phase if tally.part == part]
            rows.append(_row(phase, part, same))
        if of_phase:
            rows.append(_row(phase, "all", of_phase))
    if not rows:
        return None
    title = f"cycles per token on the FPGA device '{name}' ({counted}; no board was measured)"
    if counted == "measured":
        title = f"cycles per token on the FPGA device '{name}' (measured)"
    return Report(title, rows, _notes(ran))


def _row(phase: Phase, part: str, tallies: list[Tally]) -> Mapping[str, str | int]:
    each = {
        counter_field.name: sum(
            tally.counts[counter_field.name] / tally.tokens for tally in tallies
        )
        for counter_field in fields(Counters)
    }
    stalls = {f"stall {name}": round(each[counter]) for name, counter in STALLS.items()}
    overhead = each["busy"] - each["lookups"] - sum(each[counter] for counter in STALLS.values())
    return {
        "phase": phase.value,
        "part": part,
        "segments": len(tallies),
        "busy": round(each["busy"]),
        "lookups": round(each["lookups"]),
        **stalls,
        "start and drain": round(overhead),
    }


def _notes(tallies: list[Tally]) -> list[str]:
    decode = [tally for tally in tallies if tally.phase is Phase.DECODE]
    busy = sum(tally.counts["busy"] / tally.tokens for tally in decode)
    if not busy:
        return []
    microseconds = busy / ASSUMED_MHZ
    return [
        f"a decoded token keeps the fabric busy for {busy:.0f} cycles: "
        f"{microseconds:.0f} us at an assumed {ASSUMED_MHZ} MHz, without the host's share"
    ]
