"""Measures the machine for ``edgerun doctor --calibrate``: the whole ``MachineProfile``.

The kernels are timed through the CPU back-end as a model would use them, so that what is planned
is what was measured. Best times count where a limit is asked for, medians where other programs
are part of the question.
"""

from __future__ import annotations

import contextlib
import statistics
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from edgerun.backends.base import Progress
from edgerun.backends.cpu.row_paths import measured_paths
from edgerun.errors import EdgerunError
from edgerun.kernels.host.caches import last_cache_bytes
from edgerun.kernels.host.cores import allowed_cpus
from edgerun.kernels.isa import selected_isa
from edgerun.machine.bandwidth import measure_bandwidth
from edgerun.machine.busy import BusyMeter
from edgerun.machine.profile import (
    MachineProfile,
    check_storable,
    read_profile,
    write_disk,
    write_profile,
)
from edgerun.machine.row_times import stored
from edgerun.machine.timing import best_time, median_time
from edgerun.plan.calibration.devices import measure_devices
from edgerun.plan.calibration.disk import measure_disk
from edgerun.plan.calibration.kernels import compiled, rates_of, time_trials, trial_of
from edgerun.plan.calibration.loads import Load
from edgerun.plan.calibration.peaks import StartTimes, measure_peaks, measure_starts, quickest
from edgerun.plan.calibration.row_times import time_rows

# On systems that can, the process stays on the CPU that it is told.
SPIN = """
import os, sys
if hasattr(os, "sched_setaffinity"): os.sched_setaffinity(0, {int(sys.argv[1])})
print(flush=True)
while True: pass
"""


DECODING = Load("int8_row", "ternary", 1, (2048, 2048), 24, chained=True, shared=False)


@dataclass(frozen=True, slots=True)
class Limits:
    """What limits a number of threads, and whether it could be kept.

    Attributes:
        profile: of this machine, with what was measured now.
        disturbance: what other programs did meanwhile, so that nothing was stored; or empty.
        memory_bytes_s: read from memory now; the profile has the best that was ever seen.
    """

    profile: MachineProfile
    disturbance: str = ""
    memory_bytes_s: float = 0.0


def calibrate(
    threads: int, progress: Progress = lambda text: None, folder: Path | None = None
) -> MachineProfile:
    """Measures everything and keeps it; takes half a minute, and as long for each device.

    Args:
        threads: the most to measure with; rows also with 1, memory and fork-join with 1, 2, 4, ...
        progress: told what is measured next.
        folder: whose disk is measured too; None for no disk.

    Raises:
        EdgerunError: other programs used the machine meanwhile; nothing was stored.
        InputError: there is no such folder.
        StorageError: its disk cannot be measured, or what is measured not be stored.
    """
    check_storable()
    with BusyMeter() as meter:
        disk = None if folder is None else measure_disk(folder, progress)
        profile = _measure_all(threads, progress)
    if meter.busy:
        raise EdgerunError(
            f"the machine was busy, so nothing was stored: {meter.describe()}; "
            "end them and calibrate again"
        )
    if folder is not None and disk is not None:
        write_disk(folder, disk)
    progress("decoding beside a process that keeps one core busy")
    return write_profile(replace(profile, contended=measure_contended(threads)))


def _measure_all(threads: int, progress: Progress) -> MachineProfile:
    """All but what needs another process."""
    counts = thread_counts(threads)
    speeds: dict[int, list[float]] = {count: [] for count in counts}
    starts: dict[int, list[StartTimes]] = {count: [] for count in counts}
    peaks: list[Mapping[str, Mapping[int, float]]] = []

    def measure_limits() -> None:
        """Once more: what else uses the machine comes and goes, and the best moment counts."""
        progress(f"memory, and starting and multiplying, with {_listed(counts)} threads")
        for count in counts:
            speeds[count].append(measure_bandwidth(count))
            starts[count].append(measure_starts(count))
        peaks.append(measure_peaks(counts))

    measure_limits()
    isa = selected_isa()
    row_times = {isa.name: stored(time_rows(sorted({1, threads}), progress))}
    row_paths = measured_paths(isa, MachineProfile(row_times=row_times), threads)
    seconds, paths = time_trials(threads, progress, row_paths)
    measure_limits()
    devices = measure_devices(threads, progress)
    measure_limits()
    fork_join = {count: quickest(each).instruction_s for count, each in starts.items()}
    measured = rates_of(seconds, paths, fork_join[threads])
    return MachineProfile(
        bandwidth={count: max(each) for count, each in speeds.items()},
        rates=measured.rates,
        paths=measured.paths,
        peaks={
            path: {count: max(each[path][count] for each in peaks) for count in counts}
            for path in peaks[0]
        },
        fork_join_s=fork_join,
        threads=threads,
        other_rates=measured.others,
        call_s=measured.call_s,
        cache_bytes=last_cache_bytes(),
        devices=devices,
        row_times={**read_profile().row_times, **row_times},
    )


def limits(threads: int) -> Limits:
    """The profile with what limits so many threads, kept unless other programs were running.

    Measured now, and the best ever seen counts, since other programs and a slow moment of the
    machine only make it look slower than it is.
    """
    with BusyMeter() as meter:
        memory_bytes_s = measure_bandwidth(threads)
        profile = _limits(threads, memory_bytes_s, read_profile())
    if meter.busy:
        return Limits(profile, meter.describe(), memory_bytes_s)
    return Limits(write_profile(profile), memory_bytes_s=memory_bytes_s)


def _limits(threads: int, memory_bytes_s: float, profile: MachineProfile) -> MachineProfile:
    speed = max(memory_bytes_s, profile.bandwidth.get(threads, 0.0))
    peaks = {path: dict(by_threads) for path, by_threads in profile.peaks.items()}
    for path, by_threads in measure_peaks([threads]).items():
        best = peaks.setdefault(path, {})
        best[threads] = max(by_threads[threads], best.get(threads, 0.0))
    # Nothing costs nothing: a zero is an error of measurement.
    costs = [measure_starts(threads).instruction_s, profile.fork_join_s.get(threads, 0.0)]
    cost = min((seconds for seconds in costs if seconds > 0), default=0.0)
    return replace(
        profile,
        bandwidth={**profile.bandwidth, threads: speed},
        peaks=peaks,
        fork_join_s={**profile.fork_join_s, threads: cost},
    )


def thread_counts(most: int) -> list[int]:
    """1, 2, 4, ... and ``most``.

    >>> thread_counts(6)
    [1, 2, 4, 6]
    """
    return sorted({most, *(1 << power for power in range(most.bit_length()) if 1 << power < most)})


def measure_contended(threads: int) -> float | None:
    """Speed of a decode-like program beside a spinning process, relative to idle.

    The other process is pinned to the first core that this one may use, and is in a session of
    its own, as a program in another terminal is. None where none can be started.
    """
    ratios = []
    with compiled(trial_of("decoding", DECODING), threads) as (_, run):
        best_time(run)
        for _ in range(3):
            alone = median_time(run)
            try:
                with spinning():
                    ratios.append(alone / median_time(run))
            except OSError:
                return None
    return statistics.median(ratios)


@contextlib.contextmanager
def spinning() -> Iterator[None]:
    """A process that keeps one core busy meanwhile.

    Raises:
        OSError: it cannot be started.
    """
    pinned = str(min(allowed_cpus()))
    command = [sys.executable, "-S", "-c", SPIN, pinned]
    with subprocess.Popen(command, stdout=subprocess.PIPE, start_new_session=True) as process:
        try:
            assert process.stdout is not None
            if not process.stdout.readline():  # a line says that it spins now
                raise OSError("the spinning process ended")
            yield
        finally:
            process.kill()


def _listed(counts: Sequence[int]) -> str:
    return ", ".join(map(str, counts))
