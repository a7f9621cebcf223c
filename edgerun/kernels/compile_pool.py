"""Compiles several kernels at a time, in this process and in helpers.

Numba compiles one function at a time in a process. A first run needs some twenty kernels, so
those that wait are shared with helper processes, which are started when more than one waits and
end when there is nothing to do. Whoever needs a kernel compiles what waits until that one is
there; without helpers, or with broken ones, everything is compiled here.
"""

from __future__ import annotations

import json
import logging
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from edgerun.cores import cores

logger = logging.getLogger(__name__)

MOST_HELPERS = 3  # each takes 150 MB while it lives
IDLE_S = 1.0
HELPER = (
    "import sys; sys.path[:] = sys.argv[1:]; "
    "from edgerun.kernels.compile_worker import main; main()"
)


@dataclass(slots=True, eq=False)
class Job:
    """A kernel to be compiled.

    Attributes:
        name: of the registered kernel.
        params: its compile-time constants.
        code: object code, once it is there.
        error: why there is none.
        local: no helper can do it.
        told: somebody was told of it.
    """

    name: str
    params: dict[str, Any]
    code: bytes | None = None
    error: BaseException | None = None
    local: bool = False
    told: bool = False

    @property
    def done(self) -> bool:
        """Whether there is nothing left to wait for."""
        return self.code is not None or self.error is not None

    def __str__(self) -> str:
        return " ".join([self.name, *(str(value) for value in self.params.values())])


def helpers_allowed() -> int:
    """Helper processes that may run beside this one."""
    if not sys.executable or getattr(sys, "frozen", False):  # there is no interpreter to start
        return 0
    return min(cores().usable - 1, MOST_HELPERS)


@dataclass(slots=True)
class CompilePool:
    """Jobs that wait, and the threads that pass them to helpers.

    Attributes:
        compile_here: compiles a job in this process.
        most: helpers at a time.
    """

    compile_here: Callable[[Job], bytes]
    most: int = field(default_factory=helpers_allowed)
    _waiting: deque[Job] = field(default_factory=deque)
    _helpers: int = 0
    _changed: threading.Condition = field(default_factory=threading.Condition)

    def submit(self, job: Job) -> None:
        """Queues a job."""
        with self._changed:
            self._waiting.append(job)
            if len(self._waiting) > 1 and self._helpers < self.most:
                self._helpers += 1
                threading.Thread(target=self._serve, daemon=True).start()
            self._changed.notify_all()

    def finish(self, job: Job, progress: Callable[[str], None] | None = None) -> bytes:
        """Returns a job's object code; compiles meanwhile, first of all that job.

        Args:
            job: submitted before.
            progress: told of each job before it is compiled here or waited for.

        Raises:
            Exception: whatever the compiler raised.
        """
        while True:
            with self._changed:
                while not job.done and not self._waiting:
                    _tell(job, progress)
                    self._changed.wait()
                if job.done:
                    break
                if job in self._waiting:
                    chosen = job
                    self._waiting.remove(job)
                else:
                    chosen = self._waiting.popleft()
            _tell(chosen, progress)
            self._compile(chosen)
        _tell(job, progress)
        if job.code is None:
            assert job.error is not None
            raise job.error
        return job.code

    def _compile(self, job: Job) -> None:
        code, error = None, None
        try:
            code = self.compile_here(job)
        except Exception as problem:  # belongs to whoever wants this job
            error = problem
        except BaseException as problem:
            job.error = problem
            raise
        with self._changed:
            job.code, job.error = code, error
            self._changed.notify_all()

    def _serve(self) -> None:
        """Passes jobs to one helper until none has come for a while."""
        helper = Helper()
        try:
            while (job := self._next()) is not None:
                code = helper.compile(job)
                with self._changed:
                    if code is None:
                        job.local = True
                        self._waiting.appendleft(job)
                    job.code = code
                    self._changed.notify_all()
                if not helper.alive:
                    break
        finally:
            with self._changed:
                self._helpers -= 1
            helper.close()

    def _next(self) -> Job | None:
        """The last job that waits: the process itself begins at the front."""

        def find() -> Job | None:
            return next((one for one in reversed(self._waiting) if not one.local), None)

        with self._changed:
            self._changed.wait_for(lambda: find() is not None, IDLE_S)
            job = find()
            if job is not None:
                self._waiting.remove(job)
            return job


class Helper:
    """A process that compiles what it is sent (``compile_worker.py``)."""

    def __init__(self) -> None:
        """Starts it; one that cannot be started is not ``alive``."""
        self._process: subprocess.Popen[bytes] | None = None
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-c", HELPER, *sys.path],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
            )
        except OSError as error:
            logger.debug("cannot start a process that compiles: %s", error)

    @property
    def alive(self) -> bool:
        """Whether it answers."""
        return self._process is not None

    def compile(self, job: Job) -> bytes | None:
        """Object code of a job, or None if the helper cannot do it."""
        process = self._process
        if process is None:
            return None
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(json.dumps([job.name, job.params]).encode() + b"\n")
            process.stdin.flush()
            size = int(process.stdout.readline())
            code = process.stdout.read(size)
            if len(code) == size:
                return code or None
        except (OSError, ValueError) as error:
            logger.debug("a process that compiles kernels has failed: %s", error)
        self.close()
        return None

    def close(self) -> None:
        """Ends the process."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.communicate()


def _tell(job: Job, progress: Callable[[str], None] | None) -> None:
    if progress is not None and not job.told:
        job.told = True
        progress(str(job))
