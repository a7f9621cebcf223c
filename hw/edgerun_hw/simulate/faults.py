"""Faults that the simulated memory can be told to commit."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum, IntFlag

SLVERR = 2
DECERR = 3
FOREVER = (1 << 64) - 1


class FaultKind(IntEnum):
    """What goes wrong; mirrors ``FaultKind`` of ``hw/tb/faults.h``."""

    READ_RESPONSE = 0  # beats within the addresses are answered with `value`
    EARLY_LAST = 1  # a read burst ends, with RLAST, `value` beats too early
    MISSING_LAST = 2  # a read burst's last beat comes without RLAST
    WRITE_RESPONSE = 3  # write bursts are answered with `value`
    SILENCE = 4  # a burst makes the channels in `value` stop answering


class Channel(IntFlag):
    """Channels of an AXI port that can fall silent."""

    AR = 1
    R = 2
    AW = 4
    W = 8
    B = 16


@dataclass(frozen=True)
class Fault:
    """A fault that hits bursts of one port.

    Attributes:
        kind: what goes wrong.
        port: number of a weight port; the number of weight ports for the data port; None for any.
        value: see ``kind``: an AXI response, a number of beats, or ``Channel``s.
        skip: bursts of those meant that pass unharmed first.
        count: bursts that are hit then.
        first: lowest byte address meant.
        last: end of the addresses meant; None for all.
        cycles: how long a silence lasts.
    """

    kind: FaultKind
    port: int | None = None
    value: int = SLVERR
    skip: int = 0
    count: int = 1
    first: int = 0
    last: int | None = None
    cycles: int = FOREVER
