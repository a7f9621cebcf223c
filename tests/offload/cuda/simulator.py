"""Numba's simulator of a GPU: how tests run modules under it, and how these hurry it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np


def told_by(module: str, *arguments: str, **environment: str) -> Any:
    """The last line that a module beside this one prints, as JSON; in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-m", f"tests.offload.cuda.{module}", *arguments],
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), **environment},
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


def simulated(module: str, *arguments: str) -> Any:
    """``told_by`` under the simulator, which is chosen when Numba is imported."""
    return told_by(module, *arguments, NUMBA_ENABLE_CUDASIM="1")


def hurry() -> None:
    """Takes the waiting out of the simulator, and makes it safe.

    It has a thread of the system's for each of the GPU's, asks without a pause whether they have
    ended, and reads files to find out which line shared memory is made in. Two threads that make
    it at the same moment would get memory of their own. Here threads of a block take turns.
    """
    from numba.cuda.simulator import kernel, kernelapi

    shared, lock = kernelapi.FakeCUDAShared.array, threading.Lock()

    def array(self: Any, shape: Any, dtype: Any) -> Any:
        with lock:
            return shared(self, shape, dtype)

    def line(frame: Any) -> list[Any]:
        caller = frame.f_back.f_back  # of what stands in for ``array``
        return [(caller.f_code.co_filename, caller.f_lineno), None]

    kernelapi.FakeCUDAShared.array = array
    kernelapi.traceback = SimpleNamespace(extract_stack=line)
    kernel.BlockManager.run = run_in_turns
    kernel.BlockThread.syncthreads = give_turn


def run_in_turns(manager: Any, grid_point: Any, *arguments: Any) -> None:
    """Runs a block: each thread up to where it waits for the others, then each up to the next.

    Every other time the last one is the first, so that a thread which does not wait where it should
    is seen to read too early or to write too early.

    Raises:
        Exception: what a thread raised.
    """
    from numba.cuda.simulator.kernel import BlockThread

    def work(thread: Any) -> None:
        try:
            manager._f(*arguments)
        except Exception as error:
            thread.exception = error
        thread.has_ended = True
        thread.returned.release()

    running = []
    for point in np.ndindex(*manager._block_dim):
        thread = BlockThread(None, manager, grid_point, point, debug=False)
        thread.run = partial(work, thread)
        thread.turn, thread.returned, thread.has_ended = held_lock(), held_lock(), False
        running.append(thread)
    go_on = [thread.start for thread in running]
    with on_one_core():
        while running:
            for thread, begin in zip(running, go_on, strict=True):
                begin()
                thread.returned.acquire()
                if thread.exception is not None:
                    raise thread.exception
            running = [thread for thread in running[::-1] if not thread.has_ended]
            go_on = [thread.turn.release for thread in running]


@contextmanager
def on_one_core() -> Iterator[None]:
    """For threads that take turns: to wake one on another core takes longer than all that it does.

    Threads that are started meanwhile stay there, the one that starts them comes back.
    """
    if not hasattr(os, "sched_setaffinity"):
        yield
        return
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {sorted(cores)[os.getpid() % len(cores)]})
    try:
        yield
    finally:
        os.sched_setaffinity(0, cores)


def give_turn(thread: Any) -> None:
    """What a thread does where it waits for the others of its block."""
    thread.returned.release()
    thread.turn.acquire()


def held_lock() -> Any:
    """A lock that somebody has."""
    lock = threading.Lock()
    lock.acquire()
    return lock
