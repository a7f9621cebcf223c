"""The way to the stand-in's memory: as slow as it was asked to be, one upload at a time."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from edgerun.offload.sharing.device import U8

PIECE_BYTES = 256 << 10
LINK_THREAD = "edgerun-link"
CLOSING_S = 1.0  # a thread that is stuck does no harm: nobody waits for it any more


@dataclass(frozen=True)
class Upload:
    """An expert to be copied, and who is to be told when it is there.

    Attributes:
        source: its slot in main memory.
        target: that of the stand-in.
        then: called with the seconds that it took, by the link's thread.
    """

    source: U8
    target: U8
    then: Callable[[float], None]


class Link:
    """Copies in a thread of its own, no faster than a bucket of tokens allows.

    Tokens are bytes. They come at a steady rate, none are saved up while nothing is uploaded, and
    each upload begins with a pause.
    """

    def __init__(self, bytes_s: float, latency_s: float) -> None:
        """Starts the thread.

        Args:
            bytes_s: rate.
            latency_s: pause before each upload.
        """
        self._bytes_s, self._latency_s = bytes_s, latency_s
        self._waiting: queue.SimpleQueue[Upload | None] = queue.SimpleQueue()
        self._stopped = False
        self.nbytes = 0
        self._thread = threading.Thread(target=self._work, daemon=True, name=LINK_THREAD)
        self._thread.start()

    def start(self, upload: Upload) -> None:
        """Queues an upload."""
        self._waiting.put(upload)

    def close(self) -> None:
        """Ends the thread; uploads that wait are dropped, one that is under way is cut off."""
        self._stopped = True
        self._waiting.put(None)
        if threading.current_thread() is not self._thread:
            self._thread.join(CLOSING_S)

    def _work(self) -> None:
        while (upload := self._waiting.get()) is not None and not self._stopped:
            begin = time.monotonic()
            due = begin + self._latency_s
            for start in range(0, len(upload.source), PIECE_BYTES):
                piece = upload.source[start : start + PIECE_BYTES]
                np.copyto(upload.target[start : start + len(piece)], piece)
                due += len(piece) / self._bytes_s
                self.nbytes += len(piece)
                self._pace(due)
                if self._stopped:
                    return
            upload.then(time.monotonic() - begin)

    def _pace(self, due: float) -> None:
        """Waits until there are tokens for what was copied."""
        if (left := due - time.monotonic()) > 0:
            time.sleep(left)
