"""The thread that makes uploads: what it was given and will not do is not held on to."""

from __future__ import annotations

import contextlib
import gc
import queue
import threading
import weakref
from collections.abc import Iterator

import pytest

from edgerun.offload.cuda.worker import Worker


class Owner:
    """Has a worker that does its methods, as what there is on a GPU has."""

    def __init__(self) -> None:
        self.begun, self.go = threading.Event(), threading.Event()
        self.faults: queue.SimpleQueue[str] = queue.SimpleQueue()
        self.worker = Worker("test-copies", contextlib.nullcontext(), self.faults.put)

    def wait(self) -> None:
        """A job that is under way until it is let go."""
        self.begun.set()
        self.go.wait(20)

    def fail(self) -> None:
        """A job that the GPU refuses."""
        self.wait()
        raise RuntimeError("[700] CUDA_ERROR_ILLEGAL_ADDRESS")


@pytest.fixture(autouse=True)
def _without_collector() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.parametrize("is_at_fault", [False, True])
def test_jobs_that_are_left_do_not_keep_their_owner(is_at_fault: bool) -> None:
    owner = Owner()
    owner.worker.do(owner.fail if is_at_fault else owner.wait)
    for _ in range(3):
        owner.worker.do(owner.wait)
    assert owner.begun.wait(20)
    threading.Timer(0.05, owner.go.set).start()  # others are left, for closing has begun
    if is_at_fault:
        assert "ILLEGAL_ADDRESS" in owner.faults.get(timeout=20)
        owner.worker._thread.join(20)
        owner.worker.do(owner.wait)  # by whoever has not heard of it
    assert owner.worker.close()
    left = weakref.ref(owner)
    del owner
    assert left() is None
