"""Interrupts the main thread, as Ctrl-C does, at times that nobody chose."""

from __future__ import annotations

import ctypes
import os
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

AGAIN_S = 5.0  # Python drops an exception that is raised in a finaliser


def repeat_until_interrupted(
    function: Callable[[], object], rng: random.Random, most_s: float
) -> None:
    """Calls a function again and again until a KeyboardInterrupt, sent within ``most_s`` seconds.

    By SIGUSR1: the timers belong to pytest-timeout.
    """
    done = threading.Event()

    def send() -> None:
        time.sleep(rng.random() * most_s)
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGUSR1)
        while not done.wait(AGAIN_S):
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGUSR1)

    forget_signal_stack()
    before = signal.signal(signal.SIGUSR1, signal.default_int_handler)
    sender = threading.Thread(target=send, daemon=True)
    try:
        sender.start()
        while True:
            function()
    except KeyboardInterrupt:
        done.set()
        sender.join()
    finally:
        signal.signal(signal.SIGUSR1, before)


@contextmanager
def obeyed_ctrl_c() -> Iterator[None]:
    """Makes sure that SIGINT is KeyboardInterrupt.

    A shell starts background jobs with SIGINT ignored, and that is inherited. A library that was
    unloaded since, as OpenVINO is, may have left this thread a stack for signals that is gone.
    """
    forget_signal_stack()
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


@contextmanager
def ctrl_c_after(seconds: float) -> Iterator[None]:
    """Sends this process what Ctrl-C does."""
    timer = threading.Timer(seconds, os.kill, (os.getpid(), signal.SIGINT))
    with obeyed_ctrl_c():
        try:
            timer.start()
            yield
        finally:
            timer.join()


class _Stack(ctypes.Structure):
    _fields_ = (("address", ctypes.c_void_p), ("flags", ctypes.c_int), ("size", ctypes.c_size_t))


def forget_signal_stack() -> None:
    """Handlers of this thread run on its own stack from now on, whatever a library left it."""
    disabled = _Stack(None, 2, 0)  # SS_DISABLE
    assert ctypes.CDLL(None).sigaltstack(ctypes.byref(disabled), None) == 0
