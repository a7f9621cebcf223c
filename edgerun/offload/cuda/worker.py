"""A thread that does one thing after the other on a GPU."""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Callable
from typing import Any

from edgerun.offload.sharing.device import DeviceError

CLOSING_S = 1.0  # that closing waits for what is under way


class Worker:
    """Does what it is given, in order, until it is closed or something fails."""

    def __init__(self, name: str, gpu: Any, fail: Callable[[str], None]) -> None:
        """Starts the thread.

        Args:
            name: of the thread.
            gpu: context manager that makes a GPU the thread's.
            fail: is told what went wrong, once; nothing is done after that.
        """
        self._gpu, self._fail = gpu, fail
        self._jobs: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self.is_closed = False
        self._thread = threading.Thread(target=self._work, daemon=True, name=name)
        self._thread.start()

    def do(self, job: Callable[[], None]) -> None:
        """Queues a job."""
        self._jobs.put(job)

    def close(self) -> bool:
        """Ends the thread after the job under way; False if that one does not end in time."""
        self.is_closed = True
        self._jobs.put(None)
        if threading.current_thread() is not self._thread:
            self._thread.join(CLOSING_S)
        if self._thread.is_alive():
            return False
        self._drop_jobs()
        return True

    def _work(self) -> None:
        try:
            with self._gpu:
                while (job := self._jobs.get()) is not None and not self.is_closed:
                    job()
        except Exception as error:  # belongs to whoever waits for an answer
            said = isinstance(error, DeviceError)
            self._fail(str(error) if said else f"{type(error).__name__}: {error}")
        finally:
            self._drop_jobs()

    def _drop_jobs(self) -> None:
        # They refer to who owns this worker: its memory on the GPU would stay until a collection.
        with contextlib.suppress(queue.Empty):
            while True:
                self._jobs.get_nowait()
