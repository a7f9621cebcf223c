"""What there is on a GPU from its start to its end: memory, streams, and threads that feed them."""

from __future__ import annotations

import queue
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numba import cuda

from edgerun.offload.cuda.programs import ExpertPrograms
from edgerun.offload.cuda.worker import Worker
from edgerun.offload.sharing.device import FIRST, SECOND, U8, Answer, Product

PIECE_BYTES = 1 << 20  # that are pinned at a time, twice


class Life:
    """Obeys commands and makes uploads until something fails, or it is closed.

    Weights go through two pinned buffers in turns, so that the copy to the GPU and the one into a
    buffer go on at the same time, in a stream of their own.

    Attributes:
        x: rows that come in, pinned.
        inner: rows between the products of experts that are cut, pinned.
        out: rows that go out, pinned.
        answers: to commands, and faults.
        uploaded_bytes: so far.
    """

    def __init__(self, gpu: Any, programs: ExpertPrograms) -> None:
        """Starts the threads.

        Args:
            gpu: the current one, as a context manager.
            programs: with their memory on it.
        """
        sizes = programs.sizes
        self.x, self.inner, self.out = (
            cuda.pinned_array((sizes.rows, width), np.float32)
            for width in (sizes.width, sizes.inner, sizes.width)
        )
        self.answers: queue.SimpleQueue[Answer] = queue.SimpleQueue()
        self.uploaded_bytes = 0
        self._programs = programs
        self._staging = [(cuda.pinned_array(PIECE_BYTES, np.uint8), cuda.event()) for _ in range(2)]
        self._copying, self._computing = cuda.stream(), cuda.stream()
        self._copier = Worker("edgerun-gpu-copies", gpu, self._fail)
        self._multiplier = Worker("edgerun-gpu-products", gpu, self._fail)

    def upload(self, at: int, source: U8, then: Callable[[float], None]) -> None:
        """Queues an upload to byte ``at`` of the slots; see ``Device.upload``."""
        target = self._programs.memory[at : at + len(source)]
        self._copier.do(lambda: self._upload(target, source, then))

    def send(self, number: int, first: int, slots: Sequence[int], product: Product) -> None:
        """Queues a command; see ``Device.send``."""
        self._multiplier.do(lambda: self._multiply(number, first, slots, product))

    def close(self) -> None:
        """Ends the threads; one that is stuck keeps the GPU's memory until it goes on."""
        self._copier.close()
        self._multiplier.close()

    def _fail(self, fault: str) -> None:
        self.answers.put(Answer(0, fault=fault))

    def _upload(self, target: Any, source: U8, then: Callable[[float], None]) -> None:
        begin = time.monotonic()
        for index, start in enumerate(range(0, len(source), PIECE_BYTES)):
            piece = source[start : start + PIECE_BYTES]
            staging, copied = self._staging[index % 2]
            copied.synchronize()  # what was in it is on the GPU
            np.copyto(staging[: len(piece)], piece)
            place = target[start : start + len(piece)]
            place.copy_to_device(staging[: len(piece)], stream=self._copying)
            copied.record(self._copying)
            self.uploaded_bytes += len(piece)
            if self._copier.is_closed:
                return
        self._copying.synchronize()
        then(time.monotonic() - begin)

    def _multiply(self, number: int, first: int, slots: Sequence[int], product: Product) -> None:
        begin, rows = time.monotonic(), slice(first, first + len(slots))
        source = self.inner if product.op == SECOND else self.x
        target = self.inner if product.op == FIRST else self.out
        self._programs.run(source[rows], slots, target[rows], self._computing, product)
        self._computing.synchronize()
        self.answers.put(Answer(number, time.monotonic(), begin))
