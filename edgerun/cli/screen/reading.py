"""How far a long prompt is, on a terminal, while nothing of the reply has come."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Event, Thread
from typing import TYPE_CHECKING

from edgerun.cli.screen.progress import progress_line

if TYPE_CHECKING:
    from edgerun.engine.stats import Stats

PATIENCE_S = 1.0  # in which most prompts are read, and nobody wants to be told
EVERY_S = 0.5


@contextmanager
def reading_line(stats: Stats) -> Iterator[Callable[[], None]]:
    """Shows on stderr how much of a prompt was read, in a line of its own that is cleared.

    Args:
        stats: of the reply, filled while it is computed.

    Yields:
        what ends it, for when the reply begins; calling it again does nothing.
    """
    show = progress_line().__enter__()  # and never left: what ends then is a line of the reply
    if not show.is_shown:
        yield lambda: None
        return
    ended = Event()
    teller = Thread(target=_tell, args=(stats, show, ended), name="prompt progress", daemon=True)

    def end() -> None:
        if not ended.is_set():
            ended.set()
            teller.join()  # before whoever calls writes something of its own

    teller.start()
    try:
        yield end
    finally:
        end()


def _tell(stats: Stats, show: progress_line, ended: Event) -> None:
    seconds, is_told = PATIENCE_S, False
    while not ended.wait(seconds):
        show(reading_of(stats, time.perf_counter()))
        seconds, is_told = EVERY_S, True
    if is_told:
        show("")


def reading_of(stats: Stats, now: float) -> str:
    """How far the prompt of a reply is.

    Args:
        stats: of the reply.
        now: by ``time.perf_counter()``.

    Returns:
        such as ``"reading the prompt: 1,024 of 3,600 tokens, about 20 s to go"``; how long it has
        taken where no call has ended yet, by which the rest could be told.
    """
    read, took = stats.read_tokens - stats.reused_tokens, now - stats.started
    left = stats.prompt_tokens - stats.read_tokens
    if read <= 0:
        tokens = f" of {left:,} tokens" if left else ""
        return f"reading the prompt{tokens}: {took:.0f} s"
    counted = f"{stats.read_tokens:,} of {stats.prompt_tokens:,} tokens"
    return f"reading the prompt: {counted}, about {took / read * left:.0f} s to go"
