"""Measures how fast the disk of a folder is read, in pieces as large as experts.

The pieces are read in random order, past the system's cache and through it, by one thread and by
several.
"""

from __future__ import annotations

import errno
import itertools
import logging
import os
import shutil
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import IO

import numpy as np

from edgerun.backends.base import Progress
from edgerun.errors import InputError, StorageError
from edgerun.files.direct import ALIGNMENT, DirectFile, span
from edgerun.files.plain import open_plain
from edgerun.graph.mapped_file import MappedFile
from edgerun.kernels.host.huge_pages import ReadBuffer
from edgerun.machine.busy import BusyMeter
from edgerun.machine.disk import NOMINAL_DISK, DiskProfile
from edgerun.machine.profile import read_disk, write_disk
from edgerun.values import Notice

logger = logging.getLogger(__name__)

PIECE_BYTES = 3 << 20
THREADS = (1, 2, 4, 8)
SECONDS = 0.15  # for each number of threads and way of reading
SAMPLES, SAMPLE_SECONDS = 5, 0.06  # of a disk that was measured before
SAMPLING_SECONDS = 0.6  # after which a slow disk is read no more: a sample is a piece at least
MOST_SECONDS = 20.0  # for all of them: what a slow disk has not shown by then stays unknown
FILE_BYTES = 256 << 20  # of a file to read, where there is none
LEAST_FILE_BYTES = 32 << 20
WRITE_BYTES = 4 << 20
WRITE_SECONDS = 10.0
FREE_SHARE = 0.25  # of what is free on a disk, for the file


def disk_profile(folder: Path, file: MappedFile | None, progress: Progress) -> DiskProfile:
    """What the disk of a folder can do: measured when first asked for, scaled to what it does now.

    Virtual disks change twofold within minutes, but what they like best they go on liking. The
    first measurement is kept only if no other program used the machine meanwhile.

    Args:
        folder: of a model.
        file: of its weights; one too small to be measured with, or none, leaves what is assumed.
        progress: told what is measured.

    Raises:
        BackendError: the file cannot be read.
    """
    stored = read_disk(folder)
    if file is None or len(file) < LEAST_FILE_BYTES:
        return stored or NOMINAL_DISK
    if stored is not None:
        reader = DirectFile(file.descriptor, file.check, direct=stored.is_direct)
        now = _present_speed(reader, len(file), stored.threads)
        return replace(stored.scaled(now / stored.bytes_s), measured="now")
    with BusyMeter() as meter:
        measured = measure_file(file, lambda text: progress(Notice(f"measuring the {text}")))
    if meter.busy:
        logger.info("the speed of the disk was not stored: %s", meter.describe())
        return replace(measured, measured=f"now, while {meter.describe()}")
    return write_disk(folder, measured)


def _present_speed(reader: DirectFile, size: int, threads: int) -> float:
    """Bytes a second, the middle of short reads: a pause is not what a disk does mostly."""
    end = time.perf_counter() + SAMPLING_SECONDS
    samples: list[float] = []
    buffers = _buffers(threads)
    while len(samples) <= SAMPLES and (not samples or time.perf_counter() < end):
        samples.append(_read_pieces(reader, size, buffers, SAMPLE_SECONDS))
    return median(samples[1:] or samples)  # the first read into memory that caches still held


def measure_disk(folder: Path, progress: Progress = lambda text: None) -> DiskProfile:
    """Measures the disk of a folder, which takes some seconds at most.

    What is read is the largest file there, or one that is written for it and never has a name, so
    that it is gone however this ends.

    Raises:
        InputError: there is no such folder.
        StorageError: no file can be written there.
    """
    check_folder(folder)
    with _file_of(folder, progress) as file:
        return measure_file(file, progress)


def check_folder(folder: Path) -> None:
    """Refuses what is no folder, before anything is measured.

    Raises:
        InputError: there is no such folder.
    """
    if not folder.is_dir():
        raise InputError(f"there is no folder {folder} whose disk could be measured")


def measure_file(file: MappedFile, progress: Progress = lambda text: None) -> DiskProfile:
    """Measures the disk that a file lies on by reading it.

    Raises:
        BackendError: the file cannot be read.
    """
    end = time.perf_counter() + MOST_SECONDS
    ways: dict[bool, dict[int, float]] = {True: {}, False: {}}
    for direct, speeds in ways.items():
        reader = DirectFile(file.descriptor, file.check, direct=direct)
        _read_pieces(
            reader, len(file), _buffers(1), 0.0
        )  # whether it is refused is known after the first
        if reader.is_direct != direct:
            continue
        progress(f"speed of the disk, {'past' if direct else 'through'} the system's cache")
        for threads in THREADS:
            if time.perf_counter() < end or not speeds:
                speeds[threads] = _read_pieces(reader, len(file), _buffers(threads), SECONDS)
    return DiskProfile(direct=ways[True], buffered=ways[False])


def _buffers(threads: int) -> list[ReadBuffer]:
    """A buffer for each thread, whose memory is there."""
    buffers = [ReadBuffer() for _ in range(threads)]
    for each in buffers:
        each.commit()
    return buffers


def _read_pieces(
    reader: DirectFile, size: int, buffers: Sequence[ReadBuffer], seconds: float
) -> float:
    """Bytes a second that threads read of a file, one for each buffer, a piece each or more."""
    length = min(size, PIECE_BYTES)
    order = np.random.default_rng().permutation(max(1, size // length)).tolist()
    pieces = itertools.cycle(order)
    start = time.perf_counter()

    def read(buffer: ReadBuffer) -> int:
        done = 0
        while not done or time.perf_counter() < start + seconds:
            offset = next(pieces) * length // ALIGNMENT * ALIGNMENT
            reader.forget(offset, length)
            done += len(reader.read_into(offset, length, buffer.take(span(offset, length))))
        return done

    with ThreadPoolExecutor(len(buffers)) as pool:
        done = sum(pool.map(read, buffers))
    return done / (time.perf_counter() - start)


@contextmanager
def _file_of(folder: Path, progress: Progress) -> Iterator[MappedFile]:
    """The largest file of a folder if it is large enough, else one that is made."""
    largest = _largest(folder)
    if largest is not None:
        yield _mapped(largest)
        return
    progress(f"the disk of {folder}, with a file of up to {FILE_BYTES >> 20} MiB")
    try:
        with _written(folder) as file:
            yield MappedFile(file.fileno())
    except OSError as error:
        raise StorageError(
            f"the disk of {folder} cannot be measured: a file of {LEAST_FILE_BYTES >> 20} to "
            f"{FILE_BYTES >> 20} MiB is written there for a moment, and the system says: "
            f"{error.strerror}; name a folder of this disk that you may write to and has room"
        ) from error


def _largest(folder: Path) -> Path | None:
    """The largest file of a folder, if that is large enough to be read instead of another."""
    try:
        sizes = {
            Path(entry.path): entry.stat(follow_symlinks=False).st_size
            for entry in os.scandir(folder)
            if entry.is_file(follow_symlinks=False) and os.access(entry.path, os.R_OK)
        }
    except OSError as error:
        raise InputError(f"cannot look into {folder}: {error.strerror}") from error
    path = max(sizes, key=lambda path: sizes[path], default=None)
    return path if path and sizes[path] >= FILE_BYTES else None


def _mapped(path: Path) -> MappedFile:
    try:
        descriptor = open_plain(path)
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}") from error
    try:
        return MappedFile(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def _written(folder: Path) -> Iterator[IO[bytes]]:
    """A file without a name, of random bytes, that is on the disk and not in the cache."""
    size = min(FILE_BYTES, int(shutil.disk_usage(folder).free * FREE_SHARE))
    if size < LEAST_FILE_BYTES:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    with tempfile.TemporaryFile(dir=folder) as file:
        _fill(file.fileno(), size)
        yield file


def _fill(descriptor: int, size: int) -> None:
    """Writes up to so many bytes, until they are on the disk; fewer if it takes long."""
    rng, end, done = np.random.default_rng(0), time.perf_counter() + WRITE_SECONDS, 0
    while done < size and (done < LEAST_FILE_BYTES or time.perf_counter() < end):
        done += os.write(descriptor, rng.bytes(min(WRITE_BYTES, size - done)))
        if done % (8 * WRITE_BYTES) == 0:
            os.fsync(descriptor)  # else a slow disk would be noticed only at the end
    os.fsync(descriptor)
