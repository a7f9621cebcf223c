"""Pieces of a file are what plain reads say they are, whatever the file system can do."""

from __future__ import annotations

import errno
import os
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgerun.errors import BackendError
from edgerun.files import direct as direct_file
from edgerun.files.direct import ALIGNMENT, DirectFile, span
from edgerun.files.positioned import memory_apart, open_again
from edgerun.graph.mapped_file import MappedFile
from tests.support.interrupts import forget_signal_stack
from tools.bench.page_cache import cached_pages

SIZE = 21 * ALIGNMENT + 123  # the end is aligned to nothing
CONTENT = np.random.default_rng(0).bytes(SIZE)
MODES = ("direct", "buffered", "refused at opening", "refused at reading", "without Unix calls")


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    weights = tmp_path_factory.mktemp("direct") / "weights"
    weights.write_bytes(CONTENT)
    return weights


@pytest.fixture
def own(tmp_path: Path) -> Path:
    weights = tmp_path / "weights"
    weights.write_bytes(CONTENT)
    return weights


@pytest.fixture(params=MODES)
def file(request: pytest.FixtureRequest, path: Path) -> Iterator[DirectFile]:
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "refused at opening":
            patch.setattr(direct_file, "open_again", refusing_to_open)
        if request.param == "refused at reading":
            patch.setattr(direct_file, "read_at", refusing_to_read)
        if request.param == "without Unix calls":
            for name in ("preadv", "posix_fadvise", "O_DIRECT"):
                patch.delattr(os, name, raising=False)
        yield opened(path, direct=request.param != "buffered")


def opened(path: Path, *, direct: bool = True) -> DirectFile:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        mapped = MappedFile(descriptor)
        return DirectFile(mapped.descriptor, mapped.check, direct=direct)
    finally:
        os.close(descriptor)


def refusing_to_open(descriptor: int, *, direct: bool) -> int | None:
    return None if direct else open_again(descriptor, direct=False)


def refusing_to_read(descriptor: int, out: memoryview, offset: int) -> int:
    """As file systems do whose blocks are larger, where the descriptor reads directly."""
    import fcntl

    if fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_DIRECT:
        raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
    return os.preadv(descriptor, [out], offset)


def piece(file: DirectFile, offset: int, length: int) -> bytes:
    return bytes(file.read_into(offset, length, memoryview(memory_apart(span(offset, length)))))


def has_direct_reads(path: Path) -> bool:
    return opened(path).is_direct


PIECES = st.tuples(st.integers(0, SIZE - 1), st.integers(0, SIZE - 1)).map(
    lambda ends: (min(ends), max(ends) - min(ends) + 1)
)


def test_pieces_are_those_of_plain_reads(file: DirectFile) -> None:
    @given(PIECES)
    def check(place: tuple[int, int]) -> None:
        offset, length = place
        assert piece(file, offset, length) == CONTENT[offset : offset + length]

    check()


@pytest.mark.parametrize(
    ("offset", "length"),
    [(0, SIZE), (0, 1), (SIZE - 1, 1), (ALIGNMENT - 1, 2), (ALIGNMENT, ALIGNMENT), (511, 513)],
)
def test_odd_places(file: DirectFile, offset: int, length: int) -> None:
    assert piece(file, offset, length) == CONTENT[offset : offset + length]


def test_a_slab_begins_where_the_memory_does(file: DirectFile) -> None:
    buffer = memoryview(memory_apart(4 * ALIGNMENT))
    view = file.read_into(2 * ALIGNMENT, 5000, buffer)
    assert bytes(view) == bytes(buffer[:5000]) == CONTENT[2 * ALIGNMENT :][:5000]
    assert view.obj is buffer.obj


def test_many_threads_read_at_a_time(file: DirectFile) -> None:
    def compare(seed: int) -> bool:
        rng, buffer = np.random.default_rng(seed), memoryview(memory_apart(span(0, SIZE)))
        places = (sorted(rng.integers(0, SIZE, 2).tolist()) for _ in range(50))
        return all(
            bytes(file.read_into(first, last - first + 1, buffer)) == CONTENT[first : last + 1]
            for first, last in places
        )

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(compare, range(8)))


@pytest.mark.parametrize("direct", [True, False])
def test_what_was_read_does_not_stay_in_the_systems_cache(own: Path, direct: bool) -> None:
    if direct and not has_direct_reads(own):
        pytest.skip("no direct reads here")
    descriptor = os.open(own, os.O_RDWR)
    os.fsync(descriptor)
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    if cached_pages(descriptor).any():
        pytest.skip("this file system lives in the cache")
    file = opened(own, direct=direct)
    piece(file, ALIGNMENT, 16 * ALIGNMENT)
    assert not cached_pages(descriptor).any()
    os.pread(descriptor, SIZE, 0)
    assert cached_pages(descriptor).all()  # or the share would say nothing
    os.close(descriptor)


def test_refusals_are_known(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not opened(path, direct=False).is_direct
    if not has_direct_reads(path):
        pytest.skip("no direct reads here")
    monkeypatch.setattr(direct_file, "read_at", refusing_to_read)
    file = opened(path)
    assert file.is_direct
    assert piece(file, 1, 2) == CONTENT[1:3]
    assert not file.is_direct
    monkeypatch.setattr(direct_file, "open_again", refusing_to_open)
    assert not opened(path).is_direct


@pytest.mark.parametrize("most", [1, 3 * ALIGNMENT, ALIGNMENT + 77])
@pytest.mark.parametrize("direct", [True, False])
def test_short_reads_go_on(
    path: Path, monkeypatch: pytest.MonkeyPatch, most: int, direct: bool
) -> None:
    """Where a direct read makes no progress the file is taken for cut off."""
    read_at, lengths = direct_file.read_at, []

    def read_less(descriptor: int, out: memoryview, offset: int) -> int:
        lengths.append(len(out))
        whole = memoryview(memory_apart(len(out)))
        count = min(most, read_at(descriptor, whole, offset))
        out[:count] = whole[:count]
        return count

    file = opened(path, direct=direct)
    if direct and not file.is_direct:
        pytest.skip("no direct reads here")
    monkeypatch.setattr(direct_file, "read_at", read_less)
    if direct and most < ALIGNMENT:
        with pytest.raises(BackendError, match="ends at byte 0"):
            piece(file, 100, 6 * ALIGNMENT)
        return
    count = 500 if most == 1 else 6 * ALIGNMENT
    assert piece(file, 100, count) == CONTENT[100 : 100 + count]
    assert len(lengths) > 1


@pytest.mark.parametrize("direct", [True, False])
def test_a_file_that_was_cut_off_is_an_error(own: Path, direct: bool) -> None:
    file = opened(own, direct=direct)
    os.truncate(own, 8 * ALIGNMENT + 5)
    for offset in (7 * ALIGNMENT, 8 * ALIGNMENT, 9 * ALIGNMENT, 100):
        with pytest.raises(BackendError, match="changed or cut off"):
            piece(file, offset, 2 * ALIGNMENT)


@pytest.mark.parametrize("direct", [True, False])
def test_a_file_that_was_changed_is_an_error(own: Path, direct: bool) -> None:
    file = opened(own, direct=direct)
    os.utime(own, ns=(0, 1))
    with pytest.raises(BackendError, match="changed or cut off"):
        piece(file, 0, 10)


def test_another_file_of_the_name_is_not_looked_at(own: Path) -> None:
    descriptor = os.open(own, os.O_RDONLY)
    mapped = MappedFile(descriptor)
    os.close(descriptor)
    own.rename(own.with_name("moved"))
    own.write_bytes(bytes(SIZE))
    assert piece(DirectFile(mapped.descriptor, mapped.check), 5, 50) == CONTENT[5:55]


@pytest.mark.parametrize("number", [errno.EIO, errno.ENODEV, errno.ESTALE])
@pytest.mark.parametrize("direct", [True, False])
def test_a_disk_that_is_gone_is_an_error(
    path: Path, monkeypatch: pytest.MonkeyPatch, number: int, direct: bool
) -> None:
    file = opened(path, direct=direct)

    def fail(*_: object) -> int:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(direct_file, "read_at", fail)
    with pytest.raises(BackendError, match=rf"at byte 8192: {os.strerror(number)}; see whether"):
        piece(file, 8192, 10)


def test_signals_do_not_disturb(path: Path) -> None:
    """By SIGUSR1: the timers belong to pytest-timeout."""
    file, calls, done = opened(path), [], threading.Event()

    def send() -> None:
        while not done.wait(1e-4):
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGUSR1)

    forget_signal_stack()
    before = signal.signal(signal.SIGUSR1, lambda *_: calls.append(1))
    sender = threading.Thread(target=send, daemon=True)
    try:
        sender.start()
        while len(calls) < 20:
            assert piece(file, 17, SIZE - 17) == CONTENT[17:]
    finally:
        done.set()
        sender.join()
        signal.signal(signal.SIGUSR1, before)


def test_memory_that_cannot_take_a_piece_is_refused(path: Path) -> None:
    file, memory = opened(path), memoryview(memory_apart(4 * ALIGNMENT))
    with pytest.raises(ValueError, match="need 8192, not 4096"):
        file.read_into(1, ALIGNMENT, memory[:ALIGNMENT])
    with pytest.raises(ValueError, match="must begin at a multiple"):
        file.read_into(0, 10, memory[8:])
    for offset, length in ((-1, 10), (0, 0)):
        with pytest.raises(ValueError, match="need"):
            file.read_into(offset, length, memory)


def test_descriptors_are_closed_with_the_last_holder(path: Path) -> None:
    before = len(os.listdir("/proc/self/fd")) if Path("/proc/self/fd").is_dir() else None
    if before is None:
        pytest.skip("nobody counts descriptors here")
    files = [opened(path) for _ in range(3)]
    assert len(os.listdir("/proc/self/fd")) > before
    del files
    assert len(os.listdir("/proc/self/fd")) == before
