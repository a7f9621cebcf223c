"""The lock of a board's logic: whoever drives it holds it, and so does whoever replaces it.

The helper of ``edgerun fpga deploy`` takes the same one (``deploy/broker/session.py``), so that no
logic is replaced under a running model, and no model starts on logic that is being replaced. The
kernel gives it back when the process ends, however it ends.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import tempfile
import time

from edgerun_hw.overlay.errors import OverlayError

PATH = "/run/edgerun-fpga.lock"
MAX_TEXT = 500
ATTEMPTS, PAUSE_S = 4, 0.05


def remote_path(host: str) -> str:
    """The lock for a board at another host, which keeps this user's processes here apart.

    Nothing on the board takes it: PYNQ.remote has no lock, and serves whoever asks.
    """
    name = hashlib.sha256(host.encode()).hexdigest()[:16]
    return f"{tempfile.gettempdir()}/edgerun-fpga-{os.geteuid()}-{name}.lock"


class BoardLock:
    """Holds the lock from its making until ``release``, or the end of the process.

    Args:
        path: of the lock.

    Raises:
        OverlayError: somebody else holds it, or this user may not open it.
    """

    def __init__(self, path: str = "") -> None:
        path = path or PATH
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            self._file = os.open(path, flags, 0o600)
        except OSError as error:
            raise OverlayError(
                f"the lock of this board's logic, {path}, cannot be opened: {error.strerror}; run "
                "as root"
            ) from None
        self._take()
        os.ftruncate(self._file, 0)
        now = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime())
        os.pwrite(self._file, f"edgerun run, process {os.getpid()}, since {now}".encode(), 0)

    def _take(self) -> None:
        for attempt in range(ATTEMPTS):
            try:
                fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            except BlockingIOError:  # `edgerun fpga status` holds it for a moment
                if attempt < ATTEMPTS - 1:
                    time.sleep(PAUSE_S)
        holder = os.pread(self._file, MAX_TEXT, 0).decode("utf-8", "replace") or "somebody"
        os.close(self._file)
        raise OverlayError(f"this board's logic is in use ({holder}): wait until that is done")

    def release(self) -> None:
        """Gives the lock back; a second call does nothing."""
        if self._file >= 0:
            os.ftruncate(self._file, 0)
            os.close(self._file)
            self._file = -1
