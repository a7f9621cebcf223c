"""Runs one case in this process and judges what happened."""

from __future__ import annotations

import os
import shutil
import sys
import time
import traceback
import warnings
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path

from edgerun.errors import EdgerunError
from edgerun.kernels.jit import service
from tests.fuzz.ends import is_guarded
from tests.fuzz.files import write_files
from tests.fuzz.guard import guard_pages
from tests.fuzz.kinds import KINDS
from tests.fuzz.watch import WATCH

RAN, REFUSED, FAILED, UNCOMPILED = "ran", "refused", "failed", "uncompiled"
SPARE_BYTES = 256 << 20
MESSAGE_CHARACTERS = range(10, 2000)


@dataclass(frozen=True)
class Outcome:
    """What became of a case.

    Attributes:
        kind: of input.
        seed: which one.
        result: ``"ran"``, ``"refused"``, ``"failed"``, or ``"uncompiled"`` where a kernel would
            have to be compiled first.
        detail: class of the error, what failed, or the kernel.
        message: what the user would have read, or a traceback.
        peak_bytes: memory on top of what the process had before.
        seconds: how long it took.
    """

    kind: str
    seed: int
    result: str
    detail: str = ""
    message: str = ""
    peak_bytes: int = 0
    seconds: float = 0.0

    def __str__(self) -> str:
        repeat = f"python -m tests.fuzz.replay {self.kind} {self.seed}"
        return f"{self.kind} {self.seed} {self.result}: {self.detail}\n{self.message}\n{repeat}"


class KernelMissingError(BaseException):
    """A kernel is in no cache; compiling it takes longer than all the rest of a case."""


def refuse_to_compile() -> None:
    """From here on a kernel that is not there ends the case."""

    def missing(key: str, name: str, params: object, progress: object) -> service.Compiled:
        raise KernelMissingError(key)

    service._queued = missing  # type: ignore[assignment]


def run_case(kind: str, seed: int, folder: Path) -> Outcome:
    """Makes a case, writes it below ``folder`` and uses it; the folder is empty afterwards."""
    files = KINDS[kind].make(seed)
    place = folder / "case"
    (folder / "secret").write_bytes(b"a secret")
    size = write_files(files, place)
    before = _reset_peak()
    start = time.perf_counter()
    result, detail, message = _use(kind, seed, place)
    seconds = time.perf_counter() - start
    peak = max(0, _peak() - before)
    said = _terminal()
    shutil.rmtree(place, ignore_errors=True)
    if result != UNCOMPILED and WATCH.violations:
        result, detail = FAILED, WATCH.violations[0]
    elif said:
        result, detail = FAILED, f"prints {said[:200]!r}"
    elif peak > size + SPARE_BYTES and result != UNCOMPILED:
        result, detail = FAILED, f"took {peak >> 20} MB for {size >> 10} KB of files"
    return Outcome(kind, seed, result, detail, message, peak, seconds)


def _use(kind: str, seed: int, place: Path) -> tuple[str, str, str]:
    guard = guard_pages() if is_guarded(seed) else nullcontext()
    WATCH.start(place)
    try:
        with warnings.catch_warnings(), guard:
            warnings.simplefilter("error")
            KINDS[kind].end(place, seed)
    except EdgerunError as error:
        return _judge_message(type(error).__name__, str(error))
    except KernelMissingError as error:
        return UNCOMPILED, str(error), ""
    except BaseException as error:
        return FAILED, f"{type(error).__name__}: {error}"[:300], traceback.format_exc()[-3000:]
    finally:
        WATCH.stop()
    return RAN, "", ""


def _judge_message(name: str, message: str) -> tuple[str, str, str]:
    """A refusal is one sentence that a person can read."""
    if len(message) not in MESSAGE_CHARACTERS:
        return FAILED, f"{name} with a message of {len(message)} characters", message[:500]
    return REFUSED, name, message


def hide_terminal() -> None:
    """From here on what is written to the terminal is kept, to be judged."""
    with os.fdopen(os.memfd_create("terminal"), "rb") as file:
        os.dup2(file.fileno(), sys.stdout.fileno())
        os.dup2(file.fileno(), sys.stderr.fileno())


def _terminal() -> bytes:
    """What was written there since the last call."""
    handle = sys.stderr.fileno()
    said = os.pread(handle, 2000, 0) if os.fstat(handle).st_size else b""
    os.ftruncate(handle, 0)
    os.lseek(handle, 0, os.SEEK_SET)
    return said


def _reset_peak() -> int:
    """Lets the kernel forget the largest memory so far; returns the present one, in bytes."""
    Path("/proc/self/clear_refs").write_text("5")
    return _status("VmRSS")


def _peak() -> int:
    return _status("VmHWM")


def _status(name: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(name + ":"):
            return int(line.split()[1]) << 10
    raise LookupError(name)
