"""The stand-in while a model is loaded: one process, its slots, and what becomes of them.

It is tested before it is used, its first failure is answered by a new process with empty slots, and
after the second it is given up: one line says so, and the processor goes on from the layer that
was under way. Failures are a process that ended, an answer or an upload that does not come in
time, and numbers that are not those of the processor.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import pickle
import select
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import msgspec
import numpy as np

from edgerun.backends.cpu.experts.layout import SlotLayout
from edgerun.errors import BackendError
from edgerun.kernels.host.memory import available_memory
from edgerun.offload.cache import Access, ExpertCache, Step
from edgerun.offload.policies.base import Entry
from edgerun.offload.policies.registry import policies
from edgerun.offload.standin.device import StandinDevice
from edgerun.offload.standin.link import Link, Upload
from edgerun.offload.standin.memory import U8, Regions, make_memory
from edgerun.offload.standin.process import CHILD, Answer, Command, Setup
from edgerun.values import shown

logger = logging.getLogger(__name__)
T = TypeVar("T")

MAX_RESETS = 1
START_S = 120.0  # kernels may have to be compiled
ANSWER_S = 30.0
POLICY = "lrfu"
MAX_SLOTS = 1 << 14  # more experts than any model has


class StandinError(BackendError):
    """The stand-in failed."""


class Session:
    """One process, shared by all layers of a model whose slots are alike.

    Attributes:
        layout: of a slot.
        failure: why the stand-in is not used any more, or "".
        resets: how often a new process took the place of one that failed.
        cache: which experts have slots.
        slots: which.
        arrived: those of them whose weights are there.
        due_s: when an upload that nobody waits for must have ended, 0 if there is none.
        patience_s: for an answer, beside ten times what it should take.
    """

    def __init__(
        self,
        device: StandinDevice,
        layout: SlotLayout,
        width: int,
        rows: int,
        attributes: Mapping[str, Any],
    ) -> None:
        """Makes the memory; the process is started by ``open``.

        Args:
            device: what was asked for.
            layout: of a slot.
            width: of a row.
            rows: that go to the device in one command.
            attributes: of the layers.

        Raises:
            StandinError: its memory has not room for one expert, or there is not so much.
        """
        count = min(device.memory_bytes // layout.nbytes, MAX_SLOTS)
        if count < 1:
            needed = -(-layout.nbytes // 1024)
            raise StandinError(
                f"the stand-in has {device.memory_bytes / 1e6:.3f} MB of memory and an expert "
                f"takes {layout.nbytes / 1e6:.3f}: give it memory={needed}K or more"
            )
        self.layout, self.device = layout, device
        self.failure, self.resets, self.patience_s = "", 0, ANSWER_S
        self.regions = Regions(layout.nbytes, count, rows, width)
        free = available_memory()
        if self.regions.nbytes > free:
            raise StandinError(
                f"the stand-in would take {self.regions.nbytes / 1e9:.1f} GB of this machine's "
                f"memory, of which {free / 1e9:.1f} are free: give it memory={free >> 21}M or less"
            )
        self._attributes = attributes
        self._test: Callable[[], None] = lambda: None
        self._process: subprocess.Popen[bytes] | None = None
        self._uploaded_bytes = 0
        _SESSIONS.add(self)

    def open(self, test: Callable[[], None]) -> None:
        """Starts the process and tests it; a failure is remembered, not raised.

        Args:
            test: uses the stand-in, and raises ``StandinError`` if it computes something else.
        """
        self._test = test
        self.attempt(lambda: None)

    def attempt(self, work: Callable[[], T]) -> T | None:
        """Returns what ``work`` returns; None if the stand-in failed for good, now or before."""
        while not self.failure:
            try:
                if self._process is None:
                    self._start()
                return work()
            except (StandinError, OSError) as error:
                self._recover(error)
            except BaseException:  # cut off, as by Ctrl-C: answers are still to come
                self._stop()
                raise
        return None

    def takes(self, layout: SlotLayout, attributes: Mapping[str, Any]) -> bool:
        """Whether a layer with such slots and attributes is like the first one."""
        mine = self.layout
        is_alike = (mine.matrices, mine.biases) == (layout.matrices, layout.biases)
        return is_alike and {**self._attributes, "top_k": 1} == {**attributes, "top_k": 1}

    @property
    def uploaded_bytes(self) -> int:
        """Bytes that went over the link so far."""
        return self._uploaded_bytes + (self._link.nbytes if self._process else 0)

    def admit(self, step: Step, experts: Sequence[int]) -> Access:
        """Makes experts of a step resident, and gives those that are new a slot each."""
        access = self.cache.admit(step, experts)
        self._give_slots(access)
        return access

    def upload(self, entry: Entry, source: U8, then: Callable[[float], None]) -> None:
        """Queues the upload of an expert into its slot."""

        def arrive(seconds: float) -> None:
            self.arrived.add(entry)
            then(seconds)

        slot = self.regions.slot(self._memory, self.slots[entry])
        self._link.start(Upload(source, slot, arrive))

    def improve(self, entry: Entry, source: U8, then: Callable[[float], None]) -> None:
        """Uploads an expert that nobody waits for, if it is worth more than one that has a slot."""
        access = self.cache.exchange(entry)
        if access is None:
            return
        self._give_slots(access)
        self.due_s = time.monotonic() + self.patience_s

        def arrive(seconds: float) -> None:
            self.due_s = 0.0
            then(seconds)

        self.upload(entry, source, arrive)

    def is_uploading(self) -> bool:
        """Whether an upload is under way that nobody waits for.

        Raises:
            StandinError: it should have ended.
        """
        due_s = self.due_s
        if due_s and time.monotonic() > due_s:
            raise StandinError(f"an upload did not end within {self.patience_s:g} s")
        return due_s > 0

    def send(self, number: int, first: int, slots: Sequence[int]) -> None:
        """Tells the process to multiply rows; from any thread."""
        command = msgspec.json.encode(Command(number, first, tuple(slots)))
        process = self._process
        if process is None or process.stdin is None:
            return  # an upload ended while the process did
        with self._sending, contextlib.suppress(BrokenPipeError, ValueError):
            # Who waits for the answer sees that the process has ended.
            process.stdin.write(command + b"\n")
            process.stdin.flush()

    def answer(self, expected_s: float = 0.0) -> Answer:
        """Waits for the next answer.

        Raises:
            StandinError: it does not come, or is a fault.
        """
        return self._answer(self.patience_s + 10 * expected_s)

    def close(self) -> None:
        """Ends the process; calling it twice is allowed."""
        self._stop()
        self._test = lambda: None

    def _give_slots(self, access: Access) -> None:
        for entry in access.evicted:
            self.arrived.discard(entry)
            self._free.append(self.slots.pop(entry))
        for entry in access.missing:
            self.slots[entry] = self._free.pop()

    def _start(self) -> None:
        regions = self.regions
        descriptor, self._memory = make_memory(regions.nbytes)
        self.x, self.out = regions.transfers(self._memory)
        self.cache = ExpertCache(regions.slots, policies()[POLICY]())
        self.slots: dict[Entry, int] = {}
        self.arrived: set[Entry] = set()
        self.due_s = 0.0
        self._free = list(range(regions.slots))[::-1]
        self._sending, self._buffer = threading.Lock(), b""
        command = [sys.executable, "-c", CHILD, str(descriptor), *sys.path]
        try:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                pass_fds=[descriptor],
                start_new_session=True,  # Ctrl-C is ours to answer
            )
        finally:
            os.close(descriptor)
        self._link = Link(self.device.link_bytes_s, self.device.latency_s)
        assert self._process.stdin is not None
        setup = msgspec.json.encode(Setup(regions, pickle.dumps(self.layout), self._attributes))
        self._process.stdin.write(setup + b"\n")
        self._process.stdin.flush()
        self._answer(START_S)
        self._test()

    def _answer(self, patience_s: float) -> Answer:
        end = time.monotonic() + patience_s
        assert self._process is not None and self._process.stdout is not None
        output = self._process.stdout.fileno()
        while b"\n" not in self._buffer:
            ready, _, _ = select.select([output], [], [], max(0.0, end - time.monotonic()))
            if not ready:
                raise StandinError(f"it did not answer within {patience_s:g} s")
            read = os.read(output, 1 << 16)
            if not read:
                raise StandinError(f"its process ended with code {self._process.wait(10)}")
            self._buffer += read
        line, _, self._buffer = self._buffer.partition(b"\n")
        try:
            answer = msgspec.json.decode(line, type=Answer)
        except msgspec.MsgspecError as error:
            raise StandinError(f"it answered {shown(line.decode(errors='replace'))}") from error
        if answer.fault:
            raise StandinError(answer.fault)
        return answer

    def _recover(self, error: Exception) -> None:
        """Makes room for a new process, or gives the stand-in up when that has been tried."""
        self._stop()
        if self.resets < MAX_RESETS:
            self.resets += 1
            logger.info("the stand-in is started again: %s", error)
            return
        self.failure = str(error) or type(error).__name__
        logger.warning(
            "the stand-in failed and a new process did not help, so the CPU takes over: %s",
            self.failure,
        )

    def _stop(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        self._uploaded_bytes += self._link.nbytes
        self._link.close()
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout):
            assert pipe is not None
            with contextlib.suppress(OSError):
                pipe.close()


_SESSIONS: weakref.WeakSet[Session] = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    """Ends links before the interpreter goes, whose threads must not outlive it."""
    for session in list(_SESSIONS):
        session.close()


def same_bits(computed: np.ndarray[Any, Any], expected: np.ndarray[Any, Any]) -> bool:
    """Whether two results are the same, whatever they are."""
    return computed.tobytes() == expected.tobytes()
