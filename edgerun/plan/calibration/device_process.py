"""Measures a device in a process of its own, which its compiler or driver may end.

Compilers of NPUs and GPUs were seen to abort; then one device has no figures, and those that were
measured before and after it have theirs.
"""

from __future__ import annotations

import subprocess
import sys
from signal import Signals

import msgspec

from edgerun.errors import BackendError, EdgerunError
from edgerun.machine.devices import DeviceProfile

CHILD = (
    "import sys; sys.path[:] = sys.argv[1:]; "
    "from edgerun.plan.calibration.device_process import main; main()"
)


SECONDS = 300.0  # after which a compiler or driver is taken to hang; this takes half a minute


class _Job(msgspec.Struct):
    backend: str
    device: str
    threads: int


class _Answer(msgspec.Struct):
    profile: DeviceProfile | None = None
    fault: str = ""


def measure_apart(backend: str, device: str, threads: int) -> DeviceProfile:
    """Measures one device of a back-end; its version is not in the result.

    Raises:
        BackendError: it cannot be measured, or the process did not survive it, or did not end.
    """
    job = msgspec.json.encode(_Job(backend, device, threads))
    command = [sys.executable, "-c", CHILD, *sys.path]
    try:
        process = subprocess.run(
            command,
            input=job,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            check=False,
            timeout=SECONDS,
        )
    except subprocess.TimeoutExpired as error:
        raise BackendError(
            f"it did not come to an end within {SECONDS:g} s, so its compiler or driver hangs"
        ) from error
    except OSError as error:
        raise BackendError(f"no process could be started for it: {error.strerror}") from error
    try:
        answer = msgspec.json.decode(process.stdout.rpartition(b"\n")[2], type=_Answer)
    except msgspec.DecodeError as error:
        raise BackendError(
            f"its compiler or driver ended the process that measured it with "
            f"{_ending(process.returncode)}"
        ) from error
    if answer.profile is None:
        raise BackendError(answer.fault)
    return answer.profile


def main() -> None:
    """Reads a job from stdin; the last line that it prints is the answer."""
    from edgerun.plan.calibration.devices import measure_device

    job = msgspec.json.decode(sys.stdin.buffer.read(), type=_Job)
    try:
        answer = _Answer(measure_device(job.backend, job.device, job.threads))
    except EdgerunError as error:
        answer = _Answer(fault=str(error))
    sys.stdout.buffer.write(b"\n" + msgspec.json.encode(answer))


def _ending(code: int) -> str:
    """How a process ended, for people."""
    if code >= 0:
        return f"exit code {code}"
    try:
        return f"signal {-code} ({Signals(-code).name})"
    except ValueError:
        return f"signal {-code}"
