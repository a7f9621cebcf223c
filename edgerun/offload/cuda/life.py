"""What there is on a GPU from its start to its end: memory, streams, and what feeds them."""

from __future__ import annotations

import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numba import cuda

from edgerun.offload.cuda.programs import ExpertPrograms
from edgerun.offload.cuda.streams import Context, Mark, Stream
from edgerun.offload.cuda.worker import CLOSING_S, Worker
from edgerun.offload.sharing.device import FIRST, SECOND, U8, Answer, DeviceError, Product

PIECE_BYTES = 1 << 20  # that are pinned at a time, twice
# A thread that waits for the GPU asks it without a pause for so long, and then every so often.
EAGER_S, PAUSE_S = 2e-3, 5e-5


@dataclass
class _Sent:
    """A command that is queued.

    Attributes:
        number: of the command.
        sent_s: when, by ``time.monotonic``.
        begin: the point before it.
        end: the point behind it.
    """

    number: int
    sent_s: float
    begin: Mark
    end: Mark


class Life:
    """Obeys commands and makes uploads until something fails, or it is closed.

    Commands are queued by whoever gives them, so that no thread has to wake up first. Weights go
    through two pinned buffers in turns, so that the copy to the GPU and the one into a buffer go on
    at the same time, in a stream and by a thread of their own.

    Attributes:
        x: rows that come in, pinned.
        inner: rows between the products of experts that are cut, pinned.
        out: rows that go out, pinned.
        uploaded_bytes: so far.
    """

    def __init__(self, gpu: Any, programs: ExpertPrograms) -> None:
        """Starts the thread.

        Args:
            gpu: the current one, as a context manager.
            programs: with their memory on it.
        """
        sizes = programs.sizes
        self.x, self.inner, self.out = (
            cuda.pinned_array((sizes.rows, width), np.float32)
            for width in (sizes.width, sizes.inner, sizes.width)
        )
        self.uploaded_bytes = 0
        self._programs = programs
        self._context = Context()
        self._staging = [(cuda.pinned_array(PIECE_BYTES, np.uint8), Mark()) for _ in range(2)]
        self._copying, self._computing = Stream(), Stream()
        self._faults: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._sent: deque[_Sent] = deque()
        self._marks: list[Mark] = []  # that are not in use
        self._last_s = 0.0  # when the command before was done
        self._lock = threading.Lock()
        self._copier = Worker("edgerun-gpu-copies", gpu, self._faults.put)

    def upload(self, at: int, source: U8, then: Callable[[float], None]) -> None:
        """Queues an upload to byte ``at`` of the slots; see ``Device.upload``."""
        self._copier.do(lambda: self._upload(at, source, then))

    def send(self, number: int, first: int, slots: Sequence[int], product: Product) -> None:
        """Queues a command; see ``Device.send``.

        Raises:
            DeviceError: the GPU takes none.
        """
        rows, now = slice(first, first + len(slots)), time.monotonic()
        source = self.inner if product.op == SECOND else self.x
        target = self.inner if product.op == FIRST else self.out
        try:
            with self._lock, self._context:
                command = _Sent(number, now, self._mark(), self._mark())
                command.begin.record(self._computing)
                self._programs.run(
                    source[rows], slots, target[rows], self._computing, product, first
                )
                command.end.record(self._computing)
                self._sent.append(command)
        except Exception as error:  # the driver's, or Numba's many
            raise DeviceError(f"{type(error).__name__}: {error}") from error

    def answer(self, patience_s: float) -> Answer:
        """Waits for the next answer; see ``Device.answer``."""
        began = time.monotonic()
        while True:
            answer = self._answer()
            if answer is not None:
                return answer
            waited = time.monotonic() - began
            if waited > patience_s:
                raise DeviceError(f"it did not answer within {patience_s:g} s")
            time.sleep(0 if waited < EAGER_S else PAUSE_S)

    def check(self) -> None:
        """Tells whether an upload has failed; see ``Device.check``."""
        if not self._faults.empty():
            raise DeviceError(self._faults.get())

    def close(self) -> bool:
        """Ends the thread; False if something is stuck, which needs the GPU's memory still."""
        until = time.monotonic() + CLOSING_S
        is_idle = self._copier.close()
        try:
            with self._context:
                # Not only for what was sent: Ctrl-C and cut-off uploads leave more behind.
                for stream in (self._computing, self._copying):
                    while not stream.is_done():
                        if time.monotonic() > until:
                            return False
                        time.sleep(PAUSE_S)
        except RuntimeError:
            pass  # what failed will not go on
        return is_idle

    def _answer(self) -> Answer | None:
        """The next answer, if there is one already."""
        self.check()
        with self._lock:
            if not self._sent:
                return None
            command = self._sent[0]
            try:
                with self._context:
                    if not command.end.is_past():
                        return None
                    taken_s = command.end.seconds_after(command.begin)
            except RuntimeError as error:
                raise DeviceError(f"{type(error).__name__}: {error}") from error
            self._sent.popleft()
            self._marks += command.begin, command.end
            began_s = max(command.sent_s, self._last_s)
            self._last_s = began_s + taken_s
            return Answer(command.number, self._last_s, began_s)

    def _mark(self) -> Mark:
        return self._marks.pop() if self._marks else Mark()

    def _upload(self, at: int, source: U8, then: Callable[[float], None]) -> None:
        begin = time.monotonic()
        for index, start in enumerate(range(0, len(source), PIECE_BYTES)):
            piece = source[start : start + PIECE_BYTES]
            staging, copied = self._staging[index % 2]
            copied.wait()  # what was in it is on the GPU
            np.copyto(staging[: len(piece)], piece)
            self._copying.upload(self._programs.memory, staging[: len(piece)], at + start)
            copied.record(self._copying)
            self.uploaded_bytes += len(piece)
            if self._copier.is_closed:
                return
        for _, copied in self._staging:
            copied.wait()
        if not self._copier.is_closed:  # else a command for this life would reach the next
            then(time.monotonic() - begin)
