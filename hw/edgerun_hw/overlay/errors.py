"""What can go wrong with an overlay; used on the board too, so it imports nothing of edgerun.

    OverlayError
    ├── WrongOverlayError       what is loaded is not an overlay that this driver can drive
    ├── CommandError            the overlay refused a command or broke it off, or it was lost
    ├── OverlayTimeoutError     no progress: the overlay is wedged
    └── WorkerError             the process that serves the device died, hangs or talks nonsense

A message is one sentence that a person at a terminal can act on.
"""

from __future__ import annotations


class OverlayError(Exception):
    """Base of all errors of an overlay; ``str(error)`` is one sentence fit to show to a user."""


class WrongOverlayError(OverlayError):
    """The identity, version or geometry that was read is not one that this driver knows."""


class CommandError(OverlayError):
    """The overlay refused a command or broke it off, or a reset dropped it.

    Attributes:
        tag: CMD_TAG of the first command in error, or None when nothing was submitted.
        flags: names of the bits that were set in ERROR, lower case.
    """

    def __init__(self, message: str, tag: int | None = None, flags: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.tag = tag
        self.flags = flags


class OverlayTimeoutError(OverlayError):
    """The overlay made no progress for longer than its work can take."""


class WorkerError(OverlayError):
    """The process that serves the device is gone, does not answer, or answers nonsense."""
