"""What the machine can do at most, measured while the peers sleep."""

from __future__ import annotations

from edgerun.machine.bandwidth import measure_bandwidth
from edgerun.plan.calibration.peaks import measure_peaks
from tools.bench.peers.bandwidth import BandwidthMeter


class Limits:
    """Speed of memory by two programs, the faster counts; int8 multiplication by all paths."""

    def __init__(self, threads: int) -> None:
        self._threads = threads
        self._meter = BandwidthMeter(threads)

    def bandwidth(self) -> float:
        """Bytes a second."""
        return max(self._meter.measure(), measure_bandwidth(self._threads))

    def int8_peak(self) -> float:
        """Multiply-adds a second of the fastest path that edgerun has on this processor."""
        peaks = measure_peaks([self._threads])
        return max(by_threads[self._threads] for by_threads in peaks.values())

    def close(self) -> None:
        """Ends the threads."""
        self._meter.close()
