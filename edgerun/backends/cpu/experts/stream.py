"""Experts that do not all fit into memory: threads read those that a program is waiting for.

A program rings a bell, a pipe, when something is missing, and each byte in it wakes one reader.
It decides under a lock what is read next (``pool.py``) and hands that to threads which need no
interpreter (``slot_readers.py``), so that one reader is enough. What these cannot do readers do
themselves, and for that more of them are started. What goes wrong ends the run under way and
nothing else; a read that came too late for its run serves the next one.
"""

from __future__ import annotations

import atexit
import logging
import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

from edgerun.backends.base import ExpertMemory
from edgerun.backends.cpu.experts.filler import SlotFiller
from edgerun.backends.cpu.experts.gate import Gate
from edgerun.backends.cpu.experts.layout import SlotLayout
from edgerun.backends.cpu.experts.outlook import Outlook
from edgerun.backends.cpu.experts.pool import Pool
from edgerun.backends.cpu.experts.prefetch import ALL, Prefetch
from edgerun.backends.cpu.experts.protocol import Aborted, Glance, Read
from edgerun.backends.cpu.experts.slot_readers import SlotReaders
from edgerun.backends.cpu.experts.source import ExpertSource, OpenFiles
from edgerun.backends.cpu.experts.stored_layer import StoredLayer
from edgerun.backends.cpu.experts.words import LayerWords, SharedWords
from edgerun.backends.figures import ExpertReads
from edgerun.errors import BackendError, EdgerunError
from edgerun.formats.stack import ExpertStack
from edgerun.graph.mapped_file import ArrayReader
from edgerun.kernels.host.huge_pages import ReadBuffer, zeroed_memory
from edgerun.kernels.host.turns import take_short_turns
from edgerun.kernels.run.residency import FAILED, LATE

logger = logging.getLogger(__name__)

CLOSING_S = 1.0  # that closing waits for a read
UNDER_WAY = 2  # beside what the disk reads: one is put in order, one is the next to be read
OTHER_READERS = 2  # one for what a program waits for, one that looks ahead
MOST_SPARE = 2  # slots
SLOTS_A_SPARE = 64  # so that few experts have no room for it


class ExpertStream:
    """Slots for experts, and threads that fill them while programs run.

    Attributes:
        slots: uint8 ``[slots, bytes]``.
        wave: experts that are computed together where a layer needs more than there are slots.
    """

    def __init__(self, memory: ExpertMemory, slots: int, slot_bytes: int, top_k: int) -> None:
        """Makes the slots, at least ``top_k``; their memory is committed as it is filled."""
        self.wave = max(top_k, slots // 2)  # so that the next ones can be read meanwhile
        size = slots * slot_bytes
        self.slots = zeroed_memory(size)[:size].reshape(slots, slot_bytes)
        self._patience_s = memory.patience_s
        self._words = SharedWords(self.slots, memory.patience_s)
        self._prefetch = Prefetch(memory.at_once + UNDER_WAY)
        self._pool = Pool(
            slots,
            self.wave,
            memory.make_policy(),
            self._words,
            self._prefetch,
            spare=min(MOST_SPARE, slots // SLOTS_A_SPARE),
        )
        self._layers: list[StoredLayer] = []
        self._outlook = Outlook(self._words)
        self._files = OpenFiles(direct=memory.direct)
        self._readers = self._prefetch.at_once + OTHER_READERS
        self._slot_readers = SlotReaders(self._prefetch.at_once + 1)
        self._refused: deque[Read] = deque()  # by those
        self._read_bytes = 0
        self._fault: Exception | None = None
        self._is_closed = False
        self._lock = threading.Lock()
        self._threads: list[threading.Thread] = []
        self._bell = _pipe()
        _STREAMS.add(self)

    def add_layer(self, name: str, layout: SlotLayout, stacks: Sequence[ExpertStack]) -> LayerWords:
        """Takes a layer, none of whose experts are in memory yet."""
        with self._lock:
            source = ExpertSource(stacks, self._files)
            self._layers.append(StoredLayer(name, SlotFiller(layout), source))
            return self._words.add_layer(len(stacks[0].matrices), stacks[0].matrices[0].shape[1])

    def add_gate(self, words: LayerWords, gate: Gate) -> None:
        """Takes what says where the rows of a layer go."""
        with self._lock:
            self._outlook.add(words, gate)

    @contextmanager
    def run(self, *, repeats: bool = False) -> Iterator[Aborted]:
        """Around a run of a program; nobody else runs one meanwhile.

        Args:
            repeats: it may come to a layer several times before it goes on to the next.

        Yields:
            Whether it was given up, so that nothing more of it is of use.

        Raises:
            BackendError: experts could not be read, or came too late. What the run computed is of
                no use, and the next run may go well.
        """
        if not self._threads:
            self._start()
        with self._lock:  # a reader that is giving up the run before this one ends that first
            self._fault, self._pool.repeats = None, repeats
            self._words.start(self._bell[1], foresees=self._prefetch.begin_run())
        try:
            yield lambda: self._words.aborted != 0
        finally:  # what is behind the lock must not be left in the middle by Ctrl-C
            self._words.end()
            self._ring()
        if self._words.aborted:
            raise self._failure()
        self._files.check()  # after all reads that the run could use

    def reads(self) -> ExpertReads:
        """What became of the experts that were needed so far."""
        layers, guesses = self._words.layers, self._prefetch.guesses
        return ExpertReads(
            hits=sum(layer.hits for layer in layers),
            misses=sum(layer.misses for layer in layers),
            read_bytes=self._read_bytes,
            waited_s=self._words.waited_s,
            guessed=guesses.needed,
            foreseen=guesses.foreseen,
            early=guesses.wished,
            wasted=guesses.wasted,
        )

    def close(self) -> None:
        """Ends the readers; calling it twice is allowed, running a program after it is not."""
        with self._lock:  # so that nobody starts another reader from here on
            if self._is_closed:
                return
            self._is_closed = True
        _STREAMS.discard(self)  # its pipe's numbers may soon be another file's
        threads, self._threads = self._threads, []
        for _ in threads:
            self._ring()
        for thread in threads:
            if thread is not threading.current_thread():
                thread.join(CLOSING_S)
        with self._lock:  # so that nobody asks them meanwhile
            have_ended = self._slot_readers.close(CLOSING_S)
        if have_ended and not any(thread.is_alive() for thread in threads):
            self._close_bell()

    def _failure(self) -> BackendError:
        if self._words.aborted == LATE:
            return BackendError(
                f"experts that are not in memory did not come within {self._patience_s:g} s: the "
                "disk of the model answers too slowly or not at all; try again, or load the model "
                "with more memory for its experts"
            )
        fault = self._fault
        told = f"experts could not be brought into memory: {fault!r}"
        error = BackendError(str(fault) if isinstance(fault, EdgerunError) else told)
        error.__cause__ = fault
        return error

    def _start(self) -> None:
        if self._is_closed:
            raise RuntimeError("the readers of experts are closed")
        # Before there is a reader: if a file cannot be opened now, the next run begins anew.
        jobs = [layer.job(0) for layer in self._layers]
        try:
            self._start_reader()
        except RuntimeError as error:
            raise BackendError(
                "the system starts no more threads, and experts are read by one: end other "
                "programs, or load the model without a limit to the memory of experts"
            ) from error
        if spans := [job.read.span for job in jobs if job is not None]:
            self._slot_readers.start(max(spans), self)

    def _start_reader(self) -> None:
        name = f"edgerun-experts-{len(self._threads)}"
        thread = threading.Thread(target=self._work, daemon=True, name=name)
        thread.start()
        self._threads.append(thread)

    def _start_another(self) -> None:
        """Starts one more reader, up to the number that keeps the disk busy."""
        if len(self._threads) < self._readers and not self._is_closed:
            try:
                self._start_reader()
            except RuntimeError:  # the system has no more; fewer will do
                logger.info("%d threads read experts, not %d", len(self._threads), self._readers)
                self._readers = len(self._threads)

    def _ring(self) -> None:
        """Wakes a reader; a pipe that is full wakes all of them anyway."""
        with suppress(BlockingIOError):
            os.write(self._bell[1], b"\0")

    def _work(self) -> None:
        take_short_turns()
        buffer, reader, bell = ReadBuffer(), ArrayReader(), self._bell[0]
        while os.read(bell, 1) and not self._is_closed:
            while not self._is_at_rest() and self._go_on(buffer, reader):
                pass

    def _is_at_rest(self) -> bool:
        """Whether there is nothing to do, as after most layers if nearly all experts fit."""
        with _Deciding(self):
            return self._pool.is_at_rest and self._outlook.is_at_hand()
        return False  # something has failed

    def _go_on(self, buffer: ReadBuffer, reader: ArrayReader) -> bool:
        """Reads what is to be read next, or looks ahead; whether there was anything to do."""
        read, glance = self._next()
        if read is not None:
            self._bring(read, buffer, reader)
        elif glance is not None:
            self._look_ahead(glance)
        return read is not None or glance is not None

    def _give_up(self, error: Exception) -> None:
        self._fault = error
        self._words.abort(FAILED)

    def _next(self) -> tuple[Read | None, Glance | None]:
        read, glance = None, None
        with _Deciding(self):
            if not self._is_closed:
                self._take_answers()
                read = self._refused.popleft() if self._refused else self._hand_over()
                glance = None if read is not None else self._pool.next_glance()
            if read is not None:
                self._start_another()
                if self._pool.has_more:
                    self._ring()
        return read, glance

    def _take_answers(self) -> None:
        for read, is_done, seconds in self._slot_readers.answers():
            if is_done:
                layer, expert = read.entry
                job = self._layers[layer].job(expert)
                self._read_bytes += job.nbytes if job is not None else 0
                self._pool.finish(read, seconds)
            else:
                self._refused.append(read)

    def _hand_over(self) -> Read | None:
        """Hands over what is to be read; what is left for the reader that asks, if anything."""
        while (read := self._pool.next_read()) is not None:
            if not self._is_handed_over(read):
                return read
        return None

    def _is_handed_over(self, read: Read) -> bool:
        layer, expert = read.entry
        try:
            job = self._layers[layer].job(expert)
        except Exception:  # a reader meets the same, and tells the pool that nothing comes
            return False
        places = self._words.places(read)
        return job is not None and self._slot_readers.ask(read, job, *places, self._bell[1])

    def _bring(self, read: Read, buffer: ReadBuffer, reader: ArrayReader) -> None:
        """Reads an expert into its slot."""
        layer, expert = read.entry
        try:
            what, started = self._layers[layer], time.monotonic()
            content = what.source.read(expert, buffer)
            seconds = time.monotonic() - started
            what.filler.fill(self.slots[read.slot], content, reader)
        except Exception as error:  # belongs to whoever waits
            self._fail(read, error)
            return
        with _Deciding(self):
            self._read_bytes += content.nbytes
            self._pool.finish(read, seconds)

    def _look_ahead(self, glance: Glance) -> None:
        """Wishes for what a layer that comes will need."""
        post, layer = glance.post, glance.post.layer + glance.ahead
        kind = glance.ahead if post.has_input else ALL
        if layer >= len(self._words.layers) or not self._prefetch.looks(kind):
            return
        with _Deciding(self):
            experts = self._outlook.guess(post, layer)
            if experts and not self._is_closed:
                self._pool.wish(layer, experts, post.number, kind)

    def _fail(self, read: Read, error: Exception) -> None:
        layer, expert = read.entry
        logger.info("expert %d of %s: %s", expert, self._layers[layer].name, error)
        with self._lock:
            if self._pool.fail(read):
                self._give_up(error)

    def _close_bell(self) -> None:
        for descriptor in self._bell:
            os.close(descriptor)

    def _begin_child(self) -> None:
        """In a forked child: the readers are gone, and their bell is the parent's."""
        self._lock, self._threads = threading.Lock(), []
        self._slot_readers.close_pipe()
        self._slot_readers = SlotReaders(self._prefetch.at_once + 1)
        self._refused.clear()
        if self._is_closed:
            return
        self._close_bell()
        self._bell = _pipe()
        self._words.unlock()
        self._words.end()
        self._pool.forget_reads()


class _Deciding:
    """Holds a stream's lock; a policy that fails ends the run under way, and no reader.

    A class, for a generator would take twice as long, some hundred times a token.
    """

    __slots__ = ("_stream",)

    def __init__(self, stream: ExpertStream) -> None:
        self._stream = stream

    def __enter__(self) -> None:
        self._stream._lock.acquire()

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> bool:
        try:
            if is_failure := isinstance(error, Exception):
                self._stream._give_up(error)  # belongs to whoever waits
        finally:
            self._stream._lock.release()
        return is_failure


def _pipe() -> tuple[int, int]:
    """Ends to read from and to write to, which never makes a writer wait."""
    ends = os.pipe()
    os.set_blocking(ends[1], False)
    return ends


class _Held(threading.local):
    """Streams that a thread holds while it forks; others may fork at the same time."""

    def __init__(self) -> None:
        """Holds none."""
        self.streams: list[ExpertStream] = []


_STREAMS: weakref.WeakSet[ExpertStream] = weakref.WeakSet()
_HELD = _Held()


def _close_all() -> None:
    """Ends all readers before the interpreter goes: they must not outlive it."""
    for stream in list(_STREAMS):
        stream.close()


def _hold() -> None:
    """Before a fork: nobody is to be in the middle of a decision."""
    for stream in sorted(_STREAMS, key=id):  # threads that wait for several do so in one order
        stream._lock.acquire()
        _HELD.streams.append(stream)


def _let_go() -> None:
    while _HELD.streams:
        _HELD.streams.pop()._lock.release()


def _begin_children() -> None:
    while _HELD.streams:
        _HELD.streams.pop()._begin_child()


atexit.register(_close_all)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_hold, after_in_parent=_let_go, after_in_child=_begin_children)
