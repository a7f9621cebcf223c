"""What this machine can do, measured once and remembered.

A ``MachineProfile`` says how fast memory can be read, how fast each family of kernels
multiplies, what starting an instruction costs, and what other devices do (``devices.py``).
Planning estimates with it, and ``edgerun bench`` holds what it reaches against it. ``edgerun
doctor --calibrate`` (``plan/calibration``) measures all of it; the speed of memory alone is also
measured when something first asks for it.
Planning uses a complete profile or the nominal one, never a mixture (``for_planning``), and what
is measured while other programs use the machine is not kept.

The file lies in the cache folder and holds a profile per machine: model of the processor, cores,
and version of the kernels, since other kernels have other speeds; and one per disk (``disk.py``). A
file of another ``FORMAT`` or one that is damaged counts as none, ``absence`` says so, and the next
measurement replaces it.
"""

from __future__ import annotations

import contextlib
import logging
import math
import os
import platform
import tempfile
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from functools import cache
from pathlib import Path
from typing import Annotated, TypeAlias, TypeVar

import msgspec

from edgerun.env import settings
from edgerun.errors import StorageError
from edgerun.files.private import advice, make_folder, read_private, write_atomically
from edgerun.kernels.host.cores import cores
from edgerun.machine.bandwidth import measure_bandwidth
from edgerun.machine.busy import BusyMeter
from edgerun.machine.devices import (
    ATTENTION,
    Count,
    DeviceProfile,
    Seconds,
    Speed,
    device_key,
    interpolated,
)
from edgerun.machine.disk import DiskProfile, disk_key
from edgerun.machine.row_times import StoredTimes

T = TypeVar("T")
logger = logging.getLogger(__name__)

FILE = "machine.json"
FORMAT = 4  # of the file; 3 had rates of 1 and 128 rows, and of one head size
PROFILES_KEPT = 8
MAX_FILE_BYTES, ROOM_BYTES = 4 << 20, 1 << 20
GATE = "gate"  # the kernel that gates, whose function of an element takes longer than others
MULTIPLY = "multiply"  # the path of kernels that multiply with the instruction set's vectors
# Attention of prompts in bfloat16, and how often as fast as exact it counts if it was not measured:
# less than at 512 tokens on any machine so far, with keys and values in half precision.
FAST_ATTENTION, FAST_TIMES = "attention_bfloat16", 1.5
CALIBRATE = "`edgerun doctor --calibrate` measures"

# What a file may say: planning divides by these, and takes logarithms of them.
Speeds: TypeAlias = Annotated[Mapping[Count, Speed], msgspec.Meta(min_length=1)]
# Names of attention end in the size of heads.
_KIND = rf"^(?!({ATTENTION}|{FAST_ATTENTION})/)|/[1-9][0-9]{{0,8}}$"
Kind: TypeAlias = Annotated[str, msgspec.Meta(pattern=_KIND)]


@dataclass(frozen=True, slots=True)
class MachineProfile:
    """Measured speeds; what was never measured is missing or None.

    Attributes:
        measured: date of the latest measurement, ``YYYY-MM-DD``.
        bandwidth: bytes a second that so many threads read from memory.
        rates: multiply-adds a second by kernel family (``family``) and batch rows, with
            ``threads`` threads, without what starting and rounding cost; of one row with weights
            in the cache.
        paths: how each of ``rates`` came about: by ``"multiply"``, ``"lookup"`` or ``"amx"``.
        peaks: multiply-adds a second that each path can do at most, by threads: its innermost
            operation alone, on registers and the first level of the cache.
        fork_join_s: what an instruction of a program costs besides its kernel, by threads.
        contended: speed of decoding while another process keeps one core busy, idle is 1.
        threads: with which ``rates`` and ``contended`` were measured.
        other_rates: of what multiplies no weights, as ``rates``: ``attention_kind`` of a head size,
            in tokens of whole pages; elements a second of ``devices.ELEMENTS``, ``GATE``,
            ``rounding_kind`` of activations, and ``outputs_kind`` of families.
        call_s: what a call of a program costs besides its instructions.
        cache_bytes: of the processor's last cache; 0 where that is not known.
        devices: what others than the processor can do, by ``device_key``.
        row_times: how long few and many rows of layers of several sizes took by each way to
            multiply them. What of it is of this version, ``row_times.read_layers`` says.
    """

    measured: str = ""
    bandwidth: Mapping[Count, Speed] = field(default_factory=dict)
    rates: Mapping[str, Speeds] = field(default_factory=dict)
    paths: Mapping[str, Mapping[Count, str]] = field(default_factory=dict)
    peaks: Mapping[str, Speeds] = field(default_factory=dict)
    fork_join_s: Mapping[Count, Annotated[float, msgspec.Meta(ge=0)]] = field(default_factory=dict)
    contended: float | None = None
    threads: Count = 1
    other_rates: Mapping[Kind, Speeds] = field(default_factory=dict)
    call_s: Seconds = 0.0
    cache_bytes: Annotated[int, msgspec.Meta(ge=0)] = 0
    devices: Mapping[str, DeviceProfile] = field(default_factory=dict)
    row_times: StoredTimes = field(default_factory=dict)

    @property
    def complete(self) -> bool:
        """Whether everything that planning uses was measured."""
        return bool(self.bandwidth and self.rates and self.fork_join_s)

    def for_planning(self) -> MachineProfile:
        """This profile if it is complete, else the nominal one.

        Costs are compared with one another, so a measured one beside an assumed one would decide
        by the difference between this machine and the assumption.
        """
        return self if self.complete else NOMINAL

    def device(self, title: str, version: str) -> DeviceProfile | None:
        """What a device can do; None if that was not measured with this version of its driver.

        Nothing is known of a device where the processor was not measured: plans would compare
        what it does with what is assumed.
        """
        return self.devices.get(device_key(title, version)) if self.complete else None

    def other_versions(self, title: str, version: str) -> list[str]:
        """With which other versions of its driver a device was measured."""
        return [
            profile.version
            for key, profile in self.devices.items()
            if key == device_key(title, profile.version) and profile.version != version
        ]

    def read_speed(self, threads: int) -> float:
        """Bytes a second from memory; of the nearest number of threads that was measured."""
        return _nearest(self.bandwidth, threads)

    def rate(self, name: str, rows: int) -> float:
        """Multiply-adds a second of a kernel family, or elements, at so many batch rows.

        Between numbers of rows that were measured it is interpolated, in logarithms of both. A
        family that was not measured counts as the slowest that was.
        """
        rates = self.rates.get(name) or self.other_rates.get(name) or _slowest(self.rates)
        return interpolated(rates, rows)

    def attention_rate(self, head_dim: int, rows: int, *, fast: bool = False) -> float:
        """As ``rate``, of attention with heads of this size or the nearest that was measured.

        Attention in bfloat16, ``fast``, that was not measured counts as ``FAST_TIMES`` as fast.
        """
        if fast and not self.has_fast_attention:
            return FAST_TIMES * self.attention_rate(head_dim, rows)
        form = FAST_ATTENTION if fast else ATTENTION
        kinds = [name for name in self.other_rates if name.startswith(f"{form}/")]
        kind = min(kinds, key=lambda name: _distance(_size(name), head_dim), default=ATTENTION)
        return self.rate(kind, rows)

    @property
    def has_fast_attention(self) -> bool:
        """Whether attention in bfloat16 was measured."""
        return any(name.startswith(f"{FAST_ATTENTION}/") for name in self.other_rates)

    def instruction_s(self, threads: int) -> float:
        """Seconds an instruction costs besides its kernel; of the nearest number of threads."""
        return _nearest(self.fork_join_s, threads)

    def peak(self, threads: int, paths: Collection[str] = ()) -> float | None:
        """What kernels of some paths can do at most with so many threads, multiply-adds a second.

        The fastest peak, or kernel ever measured, of the paths and of plain multiplication, which
        rows that fill no block are left to; of all paths if none is named. None if not measured.
        """
        names = {*(paths or (*self.peaks, *self._rate_paths())), MULTIPLY}
        peaks = [self.peaks[path] for path in names if threads in self.peaks.get(path, {})]
        # More threads can do no less: a smaller figure is that of a slow moment.
        rates = [rate for peak in peaks for count, rate in peak.items() if count <= threads]
        if threads == self.threads:
            rates += [rate for rate, path in self._measured() if path in names]
        return max(rates, default=0.0) or None

    def _measured(self) -> Iterator[tuple[float, str]]:
        for name, by_rows in self.rates.items():
            for rows, rate in by_rows.items():
                yield rate, self.paths.get(name, {}).get(rows, MULTIPLY)

    def _rate_paths(self) -> set[str]:
        return {path for _, path in self._measured()}


# What planning assumes where nothing was measured: a small desktop processor.
NOMINAL = MachineProfile(
    bandwidth={1: 10e9}, rates={"": {1: 50e9}}, fork_join_s={1: 2e-6}, threads=1
)


@dataclass(frozen=True, slots=True)
class _File:
    """What the file holds: profiles by ``machine_key``, and those of disks by ``disk_key``."""

    format: int
    profiles: Mapping[str, MachineProfile]
    disks: Mapping[str, DiskProfile] = field(default_factory=dict)


def family(activations: str, weights: str) -> str:
    """Name of the kernels that multiply such weights with such activations.

    >>> family("int8_row", "ternary")
    'int8_row/ternary'
    """
    return f"{activations}/{weights}"


def attention_kind(head_dim: int, *, fast: bool = False) -> str:
    """Name of attention with heads of a size, in ``MachineProfile.other_rates``."""
    return f"{FAST_ATTENTION if fast else ATTENTION}/{head_dim}"


def rounding_kind(activations: str) -> str:
    """Name of the kernels that round activations, in ``MachineProfile.other_rates``."""
    return f"rounding/{activations}"


def outputs_kind(name: str) -> str:
    """Name of what a family's kernels do for each output, whatever the length of its sum."""
    return f"outputs/{name}"


@cache
def machine_profile() -> MachineProfile:
    """What is known of this machine, read once; measures nothing."""
    return read_profile()


def read_profile() -> MachineProfile:
    """Reads what is known of this machine; an empty profile where nothing is."""
    return _read()[0].profiles.get(machine_key(), MachineProfile())


def read_disks() -> Mapping[str, DiskProfile]:
    """Reads what is known of disks, by ``disk_key``."""
    return {key: disk for key, disk in _read()[0].disks.items() if disk.speeds}


def read_disk(folder: Path) -> DiskProfile | None:
    """Reads what is known of the disk of a folder; None where nothing is."""
    return read_disks().get(disk_key(folder))


def absence() -> str:
    """Why nothing is known of this machine, in a sentence; empty if something is, or no file is."""
    file, fault = _read()
    if fault:
        return f"{path()} {fault}, so it is ignored; {CALIBRATE} this machine anew"
    if file.profiles and machine_key() not in file.profiles:
        return (
            f"{path()} has profiles of other machines or other versions of the kernels only; "
            f"{CALIBRATE} this machine"
        )
    return ""


def write_profile(profile: MachineProfile) -> MachineProfile:
    """Keeps a profile of this machine, dated today, and returns it.

    The file appears whole or not at all; a folder that cannot be written only costs measuring
    again, which a warning says.
    """
    dated, file = replace(profile, measured=_today()), _read()[0]
    _write(replace(file, profiles=_newest(file.profiles, machine_key(), dated)))
    machine_profile.cache_clear()
    return dated


def write_disk(folder: Path, disk: DiskProfile) -> DiskProfile:
    """Keeps what is known of the disk of a folder, as ``write_profile`` does, and returns it."""
    dated, file = replace(disk, measured=_today()), _read()[0]
    _write(replace(file, disks=_newest(file.disks, disk_key(folder), dated)))
    return dated


def check_storable() -> None:
    """Refuses before anything is measured that could not be stored.

    Raises:
        StorageError: the folder cannot be written, or has no room.
    """
    try:
        with tempfile.TemporaryFile(dir=make_folder(path().parent)) as file:
            file.write(bytes(ROOM_BYTES))
    except OSError as error:
        reason = f"{path()} cannot be written ({error.strerror})"
        raise StorageError(f"{reason}, so nothing was measured: {advice(error)}") from error


def _newest(others: Mapping[str, T], key: str, value: T) -> Mapping[str, T]:
    """Some of the others and, last, what is new."""
    older = [item for item in others.items() if item[0] != key]
    return dict([*older[-(PROFILES_KEPT - 1) :], (key, value)])


def _write(file: _File) -> None:
    try:
        make_folder(path().parent)
        write_atomically(path(), msgspec.json.format(msgspec.json.encode(file)))
    except OSError as error:
        message = "what was measured is not stored: %s (%s); %s"
        logger.warning(message, path(), error.strerror, advice(error))


def _today() -> str:
    return datetime.now(timezone.utc).strftime("%Y-%m-%d")


def path() -> Path:
    """The file of profiles."""
    return settings().cache_dir / FILE


def machine_bandwidth(threads: int) -> float:
    """Reading speed of memory in bytes a second, measured when first asked for.

    Kept only if no other program used the machine meanwhile.
    """
    profile = read_profile()
    if threads in profile.bandwidth:
        return profile.bandwidth[threads]
    with BusyMeter() as meter:
        speed = measure_bandwidth(threads)
    if meter.busy:
        logger.info("the speed of memory was not stored: %s", meter.describe())
    else:
        profile = read_profile()  # which another process may have written meanwhile
        write_profile(replace(profile, bandwidth={**profile.bandwidth, threads: speed}))
    return speed


@cache
def machine_key() -> str:
    """Names the machine and the version of the kernels."""
    from edgerun.kernels.jit.sources import code_version

    here = cores()
    counted = f"{here.logical} of {os.cpu_count()} logical, {here.physical} physical cores"
    return f"{processor_name()}, {counted}, kernels {code_version()}"


def processor_name() -> str:
    """Model of the processor as the system calls it; for people, not for decisions."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(errors="replace").splitlines():
            name, _, value = line.partition(":")
            if name.strip() in ("model name", "Model"):
                return value.strip()
    return platform.processor() or platform.machine()


def _read() -> tuple[_File, str]:
    """What the file holds, and what is wrong with it if it cannot be used."""
    nothing = _File(FORMAT, {})
    try:
        content = read_private(path(), MAX_FILE_BYTES)
    except FileNotFoundError:
        return nothing, ""
    except OSError as error:
        return nothing, f"cannot be used ({error.strerror})"
    try:
        file = msgspec.json.decode(content, type=_File)
    except msgspec.MsgspecError:
        return nothing, "is damaged or of an older version of edgerun"
    if file.format != FORMAT:
        return nothing, f"has format {file.format}, this version of edgerun reads {FORMAT}"
    return file, ""


def _nearest(by_number: Mapping[int, float], number: int) -> float:
    return by_number[min(by_number, key=lambda each: _distance(each, number))]


def _distance(measured: int, number: int) -> float:
    return abs(math.log(measured / max(number, 1)))


def _size(kind: str) -> int:
    """Of the heads, in the name of a kind of attention."""
    return int(kind.rpartition("/")[2])


def _slowest(rates: Mapping[str, Mapping[int, float]]) -> Mapping[int, float]:
    """Rates to assume for a family that was not measured."""
    return min(rates.values(), key=lambda by_rows: max(by_rows.values()))
