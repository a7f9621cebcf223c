"""Tells whether the machine is as fast now as it was when it was calibrated.

Virtual machines share their processor and its memory with others: the same call may take 1.6 times
as long some minutes later. A prediction is made for the machine of the calibration, so it can only
be held against what that machine does.
"""

from __future__ import annotations

from collections.abc import Mapping

from edgerun.kernels.layouts.stream import Arena
from edgerun.kernels.run.program import Program, ThreadTeam
from edgerun.machine.bandwidth import BUFFER_BYTES, WAYS, best_pass, reading_program
from edgerun.machine.profile import MULTIPLY, MachineProfile
from edgerun.plan.calibration.peaks import CHUNKS, PROBES, REPEATS, probe_program

MEMORY = "memory"
TOLERANCE = 0.08  # how far from its speed of then the machine may be
SECONDS = 0.04  # for each of the two, a few milliseconds a pass; the best counts


class Gauge:
    """Measures how fast the machine multiplies and reads, as the calibration did, in 80 ms."""

    def __init__(self, profile: MachineProfile) -> None:
        threads = profile.threads
        probe = PROBES[MULTIPLY](CHUNKS * threads, REPEATS)
        data = Arena(piece=0).zeros((BUFFER_BYTES,))
        data[:: 4 << 10] = 1  # the system commits a page when it is written
        self._team = ThreadTeam(threads)
        ways = [reading_program(data, *way) for way in WAYS]
        self._programs: dict[str, tuple[Program, float]] = {
            MULTIPLY: (
                probe_program(probe, CHUNKS * threads),
                CHUNKS * threads * probe.products / profile.peaks[MULTIPLY][threads],
            ),
            MEMORY: (
                min(ways, key=lambda way: best_pass(self._team, way, 2 * SECONDS)),
                data.size / profile.read_speed(threads),
            ),
        }

    def speeds(self) -> dict[str, float]:
        """Of multiplying and of reading memory, 1 where it is that of the calibration."""
        return {
            name: expected_s / best_pass(self._team, program, SECONDS)
            for name, (program, expected_s) in self._programs.items()
        }

    def close(self) -> None:
        """Ends its threads."""
        self._team.close()


def is_as_calibrated(speeds: Mapping[str, float], memory_share: float) -> bool:
    """Whether something takes as long as at the calibration, nearly.

    Args:
        speeds: of a gauge.
        memory_share: of its time that it waits for memory; it multiplies meanwhile or otherwise.
    """
    slower = memory_share / speeds[MEMORY] + (1 - memory_share) / speeds[MULTIPLY]
    return abs(slower - 1) <= TOLERANCE
