"""Interrupts the main thread, as Ctrl-C does, at times that nobody chose."""

from __future__ import annotations

import random
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def interruptible() -> Iterator[None]:
    """Makes SIGUSR1 a KeyboardInterrupt; the timers belong to pytest-timeout."""
    before = signal.signal(signal.SIGUSR1, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGUSR1, before)


def interrupt_soon(rng: random.Random, most_s: float) -> None:
    """Interrupts the main thread once, within ``most_s`` seconds."""

    def send() -> None:
        time.sleep(rng.random() * most_s)
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGUSR1)

    threading.Thread(target=send, daemon=True).start()
