"""Progress on stderr: a line that is rewritten on a terminal, and what a first run waits for."""

from __future__ import annotations

import sys
import time

from edgerun.cli.screen.messages import say
from edgerun.cli.screen.visible import columns, visible
from edgerun.env import terminal_erases
from edgerun.values import Notice

SESSION = "onnxruntime session"
COMPILING = "compiling kernels that this model needs, once"
NETWORK = "compiling for openvino:"
CLEAR = "\r\x1b[2K"


class progress_line:  # noqa: N801, used as a statement
    """Rewrites one line on stderr, if that is a terminal; clears it at the end."""

    def __enter__(self) -> progress_line:
        is_terminal = sys.stderr.isatty() and terminal_erases()
        self._stream = sys.stderr if is_terminal else None
        return self

    def __call__(self, text: str) -> None:
        if self._stream:
            # A line that fills the terminal goes on in the next one, where it cannot be cleared.
            line = visible(text)[: columns(self._stream) - 1]
            self._stream.write(f"{CLEAR}{line}")
            self._stream.flush()

    def __exit__(self, *_: object) -> None:
        self("")

    @property
    def is_shown(self) -> bool:
        """Whether there is a terminal to show the line."""
        return self._stream is not None


class first_run:  # noqa: N801, used as a statement
    """Tells what a first run waits for, and nothing when everything comes from the cache.

    One line when compiling begins, on a terminal with a number that grows, and one with the
    duration. How many there will be nobody knows: kernels are asked for program by program.
    Called with the text that is passed to ``progress``: ``service.STARTING``, a kernel's name
    and its constants, or the session that onnxruntime starts and the networks that are compiled for
    a device, which happen every time; or a ``Notice``, which is said as it is.
    """

    def __init__(self) -> None:
        self._line = progress_line()
        self._count = 0
        self._began: float | None = None

    def __enter__(self) -> first_run:
        self._line.__enter__()
        return self

    def __call__(self, text: str) -> None:
        from edgerun.kernels.jit import service
        from edgerun.model.verification import CHECKING

        is_notice = isinstance(text, Notice) or text in (SESSION, CHECKING)
        if is_notice or text.startswith(NETWORK):
            self._line("")
            say("starting onnxruntime" if text == SESSION else text)
            return

        if self._began is None:
            self._began = time.perf_counter()
            if not self._line.is_shown:
                say(COMPILING)
        self._count += text != service.STARTING
        self._line(COMPILING + f" ({self._count} so far)" * bool(self._count))

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._line.__exit__()
        if self._count and self._began is not None and kind is None:
            from edgerun.kernels.jit import service

            seconds = time.perf_counter() - self._began
            remark = ", kept for the next run" if service.all_kept() else ""
            plural = "" if self._count == 1 else "s"
            say(f"compiled {self._count} kernel{plural} in {seconds:.1f} s{remark}")
