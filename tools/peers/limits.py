"""What the machine can do at most, measured while the peers sleep."""

from __future__ import annotations

from edgerun.calibration import measure_peak
from edgerun.profile import measure_bandwidth
from peers.bandwidth import BandwidthMeter


class Limits:
    """Speed of memory by two programs, the faster counts; int8 multiplication by one."""

    def __init__(self, threads: int) -> None:
        self._threads = threads
        self._meter = BandwidthMeter(threads)

    def bandwidth(self) -> float:
        """Bytes a second."""
        return max(self._meter.measure(), measure_bandwidth(self._threads))

    def int8_peak(self) -> float:
        """Multiply-adds a second of the instruction set that edgerun uses."""
        return measure_peak(self._threads)

    def close(self) -> None:
        """Ends the threads."""
        self._meter.close()
