"""What goes wrong with a simulated GPU, and what comes of it: the tokens are the processor's.

Runs in a process of its own, prints a line of JSON: NUMBA_ENABLE_CUDASIM=1 python -m
tests.offload.cuda.faults
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Callable, Collection
from contextlib import suppress
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import numpy as np
from numba import cuda

from edgerun.offload.cuda import CudaBackend, device, worker
from edgerun.offload.cuda.life import Life
from edgerun.offload.cuda.programs import ExpertPrograms
from edgerun.offload.cuda.streams import Context, Mark
from edgerun.offload.sharing import session as sessions
from tests.offload.cuda.placed import FORM, PROMPT, Placed, on_gpu
from tests.offload.cuda.simulator import hurry
from tests.support.sharing import F32, logits_of, running

TOKENS = 4
Outcome = list[Any]  # tokens that are the processor's, how often it began anew, why it ended


def outcome(expected: list[F32], placed: Placed, event: Callable[..., None]) -> Outcome:
    seen: Outcome = []

    def look(backend: CudaBackend, token: int) -> None:
        event(backend, token)
        if token == TOKENS - 1:
            session = backend._session
            assert session is not None
            seen[:] = session.resets, session.failure

    logits = logits_of(*FORM, placed, look, prompt=PROMPT, tokens=TOKENS)
    same = sum(bool(np.array_equal(a, b)) for a, b in zip(logits, expected, strict=True))
    return [same, *seen]


def nothing(backend: CudaBackend, token: int) -> None:
    """No fault."""


def errors(
    expected: list[F32],
    calls: Collection[int],
    owner: type[Any] = ExpertPrograms,
    name: str = "run",
) -> Outcome:
    """An error of CUDA's in the middle of a layer, at some calls of the kernels, or else."""
    work, count = getattr(owner, name), iter(range(1000))

    def failing(*arguments: Any) -> Any:
        if next(count) in calls:
            raise RuntimeError("[700] Call to cuMemcpyDtoHAsync: CUDA_ERROR_ILLEGAL_ADDRESS")
        return work(*arguments)

    with patch.object(owner, name, failing):
        return outcome(expected, on_gpu(), nothing)


def stalls(expected: list[F32]) -> Outcome:
    """A link that stops in the middle of an upload."""
    upload, is_stalled, let_go = Life._upload, threading.Event(), threading.Event()

    def stuck(self: Life, *arguments: Any) -> None:
        if is_stalled.is_set():
            let_go.wait(20)
        upload(self, *arguments)

    def event(backend: CudaBackend, token: int) -> None:
        session = backend._session
        assert session is not None
        if token == 2:
            is_stalled.set()
            session.patience_s = 0.2
            session.arrived.clear()  # the next layer needs an upload
        if token == 3:
            let_go.set()

    with patch.object(Life, "_upload", stuck):
        return outcome(expected, on_gpu(joins=False), event)


def taken(expected: list[F32]) -> Outcome:
    """Memory that another process has taken meanwhile."""
    context = SimpleNamespace(get_memory_info=lambda: (1000, 1 << 30))
    fake = SimpleNamespace(gpus=cuda.gpus, current_context=lambda: context)
    with patch.object(device, "cuda", fake):
        return outcome(expected, on_gpu(), nothing)


def full(expected: list[F32]) -> Outcome:
    """Memory that CUDA refuses although it seemed to be free."""

    def refuse(*_: Any, **__: Any) -> None:
        raise RuntimeError("[2] Call to cuMemAlloc results in CUDA_ERROR_OUT_OF_MEMORY")

    with patch.object(device, "ExpertPrograms", refuse):
        return outcome(expected, on_gpu(), nothing)


def forks() -> list[Any]:
    """A child whose driver refuses, as CUDA's does after a fork; and its parent after that."""
    with running(*FORM, on_gpu()) as (backend, programs, store, _):
        from edgerun.state import Batch

        def logits() -> F32:
            sequence = store.open()
            store.reserve(sequence, len(PROMPT))
            batch = Batch.of(np.asarray(PROMPT, np.int32), 0, sequence, logits="last")
            values = programs.run(batch, store)["logits"].copy()
            store.close(sequence)
            return np.asarray(values)

        first, (read, write) = logits(), os.pipe()
        child = os.fork()
        if child == 0:
            told = b"nothing"
            try:
                with patch.object(device, "Life", side_effect=RuntimeError("before forking")):
                    is_same = np.array_equal(logits(), first)
                told = f"{is_same} {backend._session.failure}".encode()
            finally:
                os.write(write, told)
                os._exit(0)
        os.close(write)
        told = os.read(read, 1000).decode()
        os.waitpid(child, 0)
        os.close(read)
        again, session = np.array_equal(logits(), first), backend._session
        backend.close()
        backend.close()
        return [told, bool(again), session.resets]


def lost(expected: list[F32]) -> Outcome:
    """A context that cannot be made current any more."""
    is_lost = False

    def enter(self: Context) -> None:
        if is_lost:
            raise RuntimeError("[201] CUDA_ERROR_INVALID_CONTEXT")

    def event(backend: CudaBackend, token: int) -> None:
        nonlocal is_lost
        is_lost = token > 1

    with patch.object(Context, "__enter__", enter):
        return outcome(expected, on_gpu(), event)


def closes(at: int) -> list[Any]:
    """The end of a GPU while an upload hangs in some wait for it.

    Returns:
        whether it hung, whether the end waited, whether the thread is there when it goes on, what
        was said to have come, and whether the memory was kept.
    """
    is_stuck, let_go, arrived, waits = threading.Event(), threading.Event(), [], iter(range(9))

    def stuck(self: Mark) -> None:
        if next(waits) == at:
            is_stuck.set()
            let_go.wait(20)

    with running(*FORM, on_gpu()) as (backend, _, _, _), patch.object(Mark, "wait", stuck):
        gpu = backend._session.device
        life = gpu._life
        copier = life._copier._thread
        gpu.upload(0, np.zeros(gpu.sizes.slot_bytes, np.uint8), arrived.append)
        was_stuck, begin = is_stuck.wait(20), time.monotonic()
        backend.close()
        waited = time.monotonic() - begin > 10
        let_go.set()
        copier.join(20)
        return [was_stuck, waited, copier.is_alive(), arrived, life in device._KEPT]


def stops() -> list[bool]:
    """Whether a GPU's memory is kept when it is idle, and when Ctrl-C cuts off its end."""
    unreleased = []

    def interrupted(self: Life) -> bool:
        raise KeyboardInterrupt

    for is_cut_off in (False, True):
        with running(*FORM, on_gpu()) as (backend, _, _, _):
            gpu = backend._session.device
            life, close = gpu._life, Life.close
            with (
                patch.object(Life, "close", interrupted if is_cut_off else close),
                suppress(KeyboardInterrupt),
            ):
                gpu.stop()
            unreleased.append(life in device._KEPT)
            life.close()
    return unreleased


def main() -> None:
    hurry()
    sessions.ANSWER_S, worker.CLOSING_S = 60.0, 0.2
    expected = logits_of(*FORM, None, prompt=PROMPT, tokens=TOKENS)
    told = {
        "once": errors(expected, {6}),
        "twice": errors(expected, {4, 6}),
        "answer": errors(expected, range(6, 1000), Mark, "is_past"),
        "upload": errors(expected, range(6, 1000), Life, "_upload"),
        "stall": stalls(expected),
        "taken": taken(expected),
        "full": full(expected),
        "fork": forks(),
        "lost": lost(expected),
        "close": [closes(at) for at in range(2)],
        "stop": stops(),
    }
    sys.stdout.write(json.dumps(told) + "\n")


if __name__ == "__main__":
    main()
