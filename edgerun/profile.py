"""What this machine can do, measured once and remembered.

So far one number: how fast memory can be read. It bounds decoding, which reads every weight for
every token, and is what achieved speeds are compared with.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from edgerun.env import settings

if TYPE_CHECKING:
    from edgerun.kernels.program import Program, ThreadTeam

BUFFER_BYTES = 256 << 20  # beyond every cache it is likely to meet
CHUNK_BYTES = 256 << 10
SECONDS = 0.4
MIN_PASSES = 3
FILE = "machine.json"


def machine_bandwidth(threads: int, *, again: bool = False) -> float:
    """Reading speed of memory in bytes a second, measured when first asked for, or ``again``."""
    key = f"{_machine()} threads={threads}"
    known = _read()
    if again or key not in known:
        known[key] = measure_bandwidth(threads)
        _write(known)
    return known[key]


def known_bandwidth(threads: int) -> float | None:
    """What ``machine_bandwidth`` measured here before, in bytes a second; measures nothing."""
    return _read().get(f"{_machine()} threads={threads}")


def measure_bandwidth(threads: int) -> float:
    """Measures how many bytes a second ``threads`` threads can read from memory.

    Takes about half a second and up to ``BUFFER_BYTES`` of memory. The best of several passes
    counts, so that other programs disturb it little.
    """
    from edgerun.kernels.isa import VECTOR_BYTES, selected_isa
    from edgerun.kernels.layout import Arena
    from edgerun.kernels.program import Program, ThreadTeam
    from edgerun.kernels.registry import instruction

    data = Arena(piece=0).zeros((_buffer_bytes(),))
    data[:: 4 << 10] = 1  # the system commits a page when it is written
    chunks = data.size // CHUNK_BYTES
    sums = np.zeros(chunks, np.int32)
    step = instruction(
        "stream_read",
        params={"lanes": VECTOR_BYTES[selected_isa()] // 4},
        fields={"data": data.ctypes.data, "bytes": CHUNK_BYTES, "sums": sums.ctypes.data},
        chunks=(0, 1, 1),
        reads=set(),
        writes=set(),
    )
    program = Program([step], [data, sums])
    program.frame[0] = chunks
    team = ThreadTeam(threads)
    try:
        return chunks * CHUNK_BYTES / _best_time(team, program)
    finally:
        team.close()


def _best_time(team: ThreadTeam, program: Program) -> float:
    best, passes, end = float("inf"), 0, time.perf_counter() + SECONDS
    while passes < MIN_PASSES or time.perf_counter() < end:
        start = time.perf_counter()
        team.run(program)
        best = min(best, time.perf_counter() - start)
        passes += 1
    return best


def _buffer_bytes() -> int:
    import psutil

    affordable = int(psutil.virtual_memory().available) // 4
    return max(1, min(BUFFER_BYTES, affordable) // CHUNK_BYTES) * CHUNK_BYTES


def _machine() -> str:
    from llvmlite import binding

    return f"{binding.get_host_cpu_name()} cores={os.cpu_count()}"


def _path() -> Path:
    return settings().cache_dir / FILE


def _read() -> dict[str, float]:
    try:
        found = json.loads(_path().read_text())
        return {str(key): float(value) for key, value in found.items()}
    except (OSError, ValueError, AttributeError, TypeError):
        return {}


def _write(known: dict[str, float]) -> None:
    """Keeps the numbers; a folder that cannot be written only costs measuring again."""
    with contextlib.suppress(OSError):
        _path().parent.mkdir(parents=True, exist_ok=True)
        temporary = _path().with_suffix(f".{os.getpid()}")
        temporary.write_text(json.dumps(known, indent=1))
        os.replace(temporary, _path())
