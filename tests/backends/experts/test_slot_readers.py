"""Threads that bring experts into slots natively: what they bring, what they leave to others."""

from __future__ import annotations

import gc
import os
import signal
import threading
import time
import weakref
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from edgerun.backends.cpu.experts.filler import SlotFiller
from edgerun.backends.cpu.experts.layout import SlotLayout, form_of
from edgerun.backends.cpu.experts.protocol import Read
from edgerun.backends.cpu.experts.slot_readers import Job, SlotReaders
from edgerun.backends.cpu.experts.source import Content, StoredExpert
from edgerun.files.direct import DirectFile, DirectRead, span
from edgerun.formats.base import PackedWeight
from edgerun.graph.mapped_file import ArrayReader
from edgerun.graph.slabs import arrays_of
from edgerun.kernels.host.huge_pages import ReadBuffer
from edgerun.kernels.isa import selected_isa
from tests.backends.experts.test_filler import random_matrix

pytestmark = pytest.mark.skipif(not hasattr(os, "preadv"), reason="reads of Unix")

EXPERTS, SKIPPED = 12, 37  # bytes before the first one
MATRIX = (40, 512, 32)
PATIENCE_S = 30.0


@dataclass
class Experts:
    """Some experts in a file, their slots, and the words that get the slots' addresses."""

    path: Path
    jobs: list[Job]
    slots: list[NDArray[np.uint8]]
    expected: list[NDArray[np.uint8]]
    table: NDArray[np.int64]

    def ask(self, readers: SlotReaders, expert: int, bell: int) -> bool:
        """Has an expert brought into its own slot."""
        entry = self.table.ctypes.data + 8 * expert
        slot = self.slots[expert].ctypes.data
        return readers.ask(Read((0, expert), expert), self.jobs[expert], slot, entry, bell)


@pytest.fixture
def experts(tmp_path: Path) -> Iterator[Experts]:
    path = tmp_path / "experts"
    matrices = [random_matrix(2, MATRIX, seed, zeros=False) for seed in range(EXPERTS)]
    matrices[5].scales[-1, -1] = np.nan
    layout = SlotLayout(
        [form_of(matrices[0], "int8_block", selected_isa(), row_scale=False, halves=False)]
    )
    filler, parts = SlotFiller(layout), [b"x" * SKIPPED]
    for matrix in matrices:
        parts += [array.tobytes() for array in arrays_of(matrix)]
    path.write_bytes(b"".join(parts))
    descriptor = os.open(path, os.O_RDONLY)
    file = DirectFile(descriptor, lambda: None)
    file.is_direct = True  # as far as anybody asks: reads are those of the system's cache
    length = matrices[0].nbytes
    jobs = []
    for number, matrix in enumerate(matrices):
        offset = SKIPPED + number * length
        start = offset // 4096 * 4096
        skipped = offset - start
        read = DirectRead(file, descriptor, start, span(offset, length), skipped, skipped + length)
        steps = filler.steps(stored(matrix))
        assert steps is not None
        jobs.append(Job.of(read, steps, 1))
    slots = [slot_of(layout) for _ in matrices]
    expected = [slot_of(layout) for _ in matrices]
    for number, matrix in enumerate(matrices):
        if number != 5:
            filler.fill(expected[number], Content(stored(matrix), None), ArrayReader())
    yield Experts(path, jobs, slots, expected, np.zeros(EXPERTS, np.int64))
    os.close(descriptor)


def stored(matrix: PackedWeight) -> StoredExpert:
    """An expert of one matrix, whose codes come first in its slab."""
    return StoredExpert((matrix,), None, (0, matrix.codes.nbytes))


def slot_of(layout: SlotLayout) -> NDArray[np.uint8]:
    memory = np.zeros(layout.nbytes + 64, np.uint8)
    return memory[-memory.ctypes.data % 64 :][: layout.nbytes]


@pytest.fixture
def readers() -> Iterator[SlotReaders]:
    """Two threads."""
    both = SlotReaders(2)
    both.start(0, None)
    yield both
    assert both.close(PATIENCE_S)


@pytest.fixture
def bell() -> Iterator[tuple[int, int]]:
    pipe = os.pipe()
    yield pipe
    for end in pipe:
        os.close(end)


def answer(readers: SlotReaders, bell: tuple[int, int]) -> tuple[Read, bool, float]:
    """The only one, once the bell has rung."""
    os.read(bell[0], 1)
    (only,) = readers.answers()
    return only


def test_experts_are_in_their_slots_before_anybody_is_told(
    experts: Experts, readers: SlotReaders, bell: tuple[int, int]
) -> None:
    for number in range(EXPERTS):
        assert experts.ask(readers, number, bell[1])
        read, is_done, seconds = answer(readers, bell)
        assert (read.entry, is_done) == ((0, number), number != 5) and seconds >= 0
        np.testing.assert_array_equal(
            experts.table != 0, [0 <= e <= number and e != 5 for e in range(EXPERTS)]
        )
        if is_done:
            assert experts.table[number] == experts.slots[number].ctypes.data
            np.testing.assert_array_equal(experts.slots[number], experts.expected[number])


def test_each_thread_has_one_at_a_time(
    experts: Experts, readers: SlotReaders, bell: tuple[int, int]
) -> None:
    """What is asked for beyond that is left to whoever asks."""
    assert experts.ask(readers, 0, bell[1]) and experts.ask(readers, 1, bell[1])
    assert not experts.ask(readers, 2, bell[1])
    os.read(bell[0], 1)
    while not (answers := list(readers.answers())):
        time.sleep(0.001)
    assert experts.ask(readers, 2, bell[1])
    end = time.monotonic() + PATIENCE_S
    while len(answers) < 3 and time.monotonic() < end:
        answers += readers.answers()
    assert {read.entry for read, is_done, _ in answers if is_done} == {(0, 0), (0, 1), (0, 2)}


@pytest.mark.parametrize("what", ["no such descriptor", "the file ends", "nothing needed is there"])
def test_reads_that_bring_too_little_are_left_to_others(
    experts: Experts, readers: SlotReaders, bell: tuple[int, int], what: str
) -> None:
    last = EXPERTS - 1
    words = experts.jobs[last].words
    if what == "no such descriptor":
        words[0] = 1 << 20
    elif what == "the file ends":
        os.truncate(experts.path, experts.path.stat().st_size - 1)
    else:
        os.truncate(experts.path, 0)
    assert experts.ask(readers, last, bell[1])
    _, is_done, _ = answer(readers, bell)
    assert not is_done and not experts.table[last]


def test_an_answer_that_nobody_took_is_told_again(
    experts: Experts, readers: SlotReaders, bell: tuple[int, int]
) -> None:
    """Whoever takes one may fail before the next."""
    assert experts.ask(readers, 0, bell[1]) and experts.ask(readers, 1, bell[1])
    os.read(bell[0], 1)
    os.read(bell[0], 1)
    first, *_ = next(readers.answers())
    ((second, *_),) = readers.answers()
    assert {first.entry, second.entry} == {(0, 0), (0, 1)} and not list(readers.answers())


def test_what_is_larger_than_a_threads_memory_is_left_to_others(
    experts: Experts, readers: SlotReaders, bell: tuple[int, int]
) -> None:
    job = experts.jobs[0]
    experts.jobs[0] = replace(job, read=replace(job.read, span=1 << 30))
    assert not experts.ask(readers, 0, bell[1])


def test_what_is_in_no_file_for_direct_reads_any_more_is_left_to_others(
    experts: Experts, readers: SlotReaders, bell: tuple[int, int]
) -> None:
    experts.jobs[0].read.file.is_direct = False
    assert not experts.ask(readers, 0, bell[1])


def test_nobody_does_anything_before_the_start_and_after_the_end(
    experts: Experts, bell: tuple[int, int]
) -> None:
    readers = SlotReaders(2)
    assert not experts.ask(readers, 0, bell[1]) and readers.close(0)
    readers.start(0, None)
    threads = list(readers._threads)
    assert readers.close(PATIENCE_S) and not any(thread.is_alive() for thread in threads)
    assert not experts.ask(readers, 0, bell[1])


@pytest.mark.parametrize("error", [MemoryError, OSError])
def test_where_threads_have_no_memory_there_are_none(
    experts: Experts,
    bell: tuple[int, int],
    monkeypatch: pytest.MonkeyPatch,
    error: type[Exception],
) -> None:
    """Whoever asks is told at once, and waits for nobody who has ended."""

    def refuse(self: ReadBuffer, size: int) -> memoryview:
        raise error("no memory")

    monkeypatch.setattr(ReadBuffer, "take", refuse)
    readers = SlotReaders(2)
    readers.start(0, None)
    assert not experts.ask(readers, 0, bell[1]) and readers.close(0)


def test_memory_of_jobs_lives_as_long_as_the_threads() -> None:
    class Owner:
        pass

    readers, owner = SlotReaders(2), Owner()
    gone = weakref.ref(owner)
    readers.start(0, owner)
    del owner
    assert gone() is not None
    assert readers.close(PATIENCE_S)
    gc.collect()
    assert gone() is None


@pytest.mark.skipif(not hasattr(signal, "pthread_kill"), reason="threads get no signals")
def test_signals_do_not_end_the_threads(
    experts: Experts, readers: SlotReaders, bell: tuple[int, int]
) -> None:
    before = signal.signal(signal.SIGUSR1, lambda *_: None)
    try:
        signal.siginterrupt(signal.SIGUSR1, True)
        for thread in readers._threads:
            assert thread.ident is not None
            for _ in range(5):
                signal.pthread_kill(thread.ident, signal.SIGUSR1)
                time.sleep(0.002)
        assert experts.ask(readers, 0, bell[1])
        assert answer(readers, bell)[1]
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert all(
        isinstance(thread, threading.Thread) and thread.is_alive() for thread in readers._threads
    )
