"""Numba's simulator of a GPU: how tests run modules under it, and how these hurry it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from types import SimpleNamespace
from typing import Any


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


def simulated(module: str) -> Any:
    """``told_by`` under the simulator, which is chosen when Numba is imported."""
    return told_by(module, NUMBA_ENABLE_CUDASIM="1")


def hurry() -> None:
    """Halves the time of the simulator, and makes it safe.

    It has a thread of the system's for each of the GPU's, asks without a pause whether they have
    ended, and reads files to find out which line shared memory is made in. Two threads that make
    it at the same moment would get memory of their own.
    """
    from numba.cuda.simulator import kernel, kernelapi

    shared, lock = kernelapi.FakeCUDAShared.array, threading.Lock()

    def array(self: Any, shape: Any, dtype: Any) -> Any:
        with lock:
            return shared(self, shape, dtype)

    def line(frame: Any) -> list[Any]:
        caller = frame.f_back.f_back  # of what stands in for ``array``
        return [(caller.f_code.co_filename, caller.f_lineno), None]

    is_alive = kernel.BlockThread.is_alive

    def patient(thread: Any) -> bool:
        time.sleep(2e-5)
        return bool(is_alive(thread))

    sys.setswitchinterval(5e-4)
    kernelapi.FakeCUDAShared.array = array
    kernelapi.traceback = SimpleNamespace(extract_stack=line)
    kernel.BlockThread.is_alive = patient
