"""Compiles several kernels at a time, in helper processes.

Numba compiles one function at a time in a process, and takes 120 MB and a second to import. A
first run needs some twenty kernels, so helpers, which end when there is nothing to do, compile
them, and this process stays as small as in a later run. Where Numba is here already, this process
takes its share and helpers only what waits beside that. Without helpers, or with broken ones,
everything is compiled here.
"""

from __future__ import annotations

import contextlib
import json
import logging
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from edgerun.kernels.host.cores import cores

Signatures: TypeAlias = dict[str, str]  # arguments as declared, by kernel

logger = logging.getLogger(__name__)

MOST_HELPERS = 4  # each takes 150 MB while it lives
IDLE_S = 1.0
HELPER = (  # whoever debugs a program of their own may have told Numba to compile nothing
    "import os, sys; os.environ['NUMBA_DISABLE_JIT'] = '0'; sys.path[:] = sys.argv[1:]; "
    "from edgerun.kernels.jit.compile_worker import main; main()"
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
        announced: somebody was told of it.
    """

    name: str
    params: dict[str, Any]
    code: bytes | None = None
    error: BaseException | None = None
    local: bool = False
    announced: bool = False

    @property
    def done(self) -> bool:
        """Whether there is nothing left to wait for."""
        return self.code is not None or self.error is not None

    def __str__(self) -> str:
        return " ".join([self.name, *(str(value) for value in self.params.values())])


def helpers_allowed() -> int:
    """Helper processes that may compile at a time."""
    if not sys.executable or getattr(sys, "frozen", False):  # there is no interpreter to start
        return 0
    return min(cores().usable, MOST_HELPERS)


def compiler_is_here() -> bool:
    """Whether this process has paid for Numba already."""
    return "numba" in sys.modules


@dataclass(slots=True)
class CompilePool:
    """Jobs that wait, and the threads that pass them to helpers.

    Attributes:
        compile_here: compiles a job in this process.
        most: helpers at a time, this process counting as one while it compiles.
        prefers_here: whether this process is to take its share.
    """

    compile_here: Callable[[Job], bytes]
    most: int = field(default_factory=helpers_allowed)
    prefers_here: Callable[[], bool] = compiler_is_here
    _waiting: deque[Job] = field(default_factory=deque)
    _taken: list[Job] = field(default_factory=list)  # by helpers
    _helpers: int = 0
    _signatures: Signatures | None = None
    _changed: threading.Condition = field(default_factory=threading.Condition)

    def submit(self, job: Job) -> None:
        """Queues a job."""
        with self._changed:
            self._waiting.append(job)
            here = self.prefers_here()
            if len(self._waiting) > here and self._helpers < self.most - here:
                self._start_helper()
            self._changed.notify_all()

    def signatures(self) -> Signatures | None:
        """The arguments of all kernels as a helper knows them; None if none answers."""
        with self._changed:
            if self._signatures is None and not self._helpers and self.most:
                self._start_helper()
            self._changed.wait_for(lambda: self._signatures is not None or not self._helpers)
            return self._signatures

    def forget_helpers(self) -> None:
        """In a forked process: the threads that pass jobs on are gone, with the jobs they had."""
        self._changed = threading.Condition()
        self._helpers = 0
        self._waiting.extend(self._taken)
        self._taken.clear()

    def _start_helper(self) -> None:
        thread = threading.Thread(target=self._serve, daemon=True)
        self._helpers += 1
        try:
            thread.start()
        except RuntimeError as error:  # the system has no more threads
            self._helpers -= 1
            logger.debug("no thread for a process that compiles: %s", error)

    def finish(self, job: Job, progress: Callable[[str], None] | None = None) -> bytes:
        """Returns a job's object code; this process compiles only if it prefers to, or must.

        Args:
            job: submitted before.
            progress: told of each job before it is compiled here or waited for.

        Raises:
            Exception: whatever the compiler raised.
        """
        while True:
            with self._changed:
                while not job.done and (chosen := self._for_here(job)) is None:
                    _tell(job, progress)
                    self._changed.wait()
                if job.done:
                    break
                assert chosen is not None
                self._waiting.remove(chosen)
            self._compile(chosen, progress)
        _tell(job, progress)
        if job.code is None:
            assert job.error is not None
            raise job.error
        return job.code

    def _for_here(self, job: Job) -> Job | None:
        """What this process should compile now while it wants a job: that one, if it waits."""
        helped = self._helpers and not self.prefers_here()
        able = [waiting for waiting in self._waiting if waiting.local or not helped]
        return job if job in able else next(iter(able), None)

    def _compile(self, job: Job, progress: Callable[[str], None] | None) -> None:
        code, error = None, None
        try:
            _tell(job, progress)
            try:
                code = self.compile_here(job)
            except Exception as problem:  # belongs to whoever wants this job
                error = problem
        except BaseException:  # Ctrl-C: the job waits until somebody wants it again
            with self._changed:
                self._waiting.appendleft(job)
                self._changed.notify_all()  # another thread may want it
            raise
        with self._changed:
            job.code, job.error = code, error
            self._changed.notify_all()

    def _serve(self) -> None:
        """Passes jobs to one helper until none has come for a while."""
        helper = None
        try:
            helper = Helper()
            self._pass_jobs(helper)
        except Exception as error:  # what waits is compiled by others
            logger.debug("a process that compiles kernels has failed: %r", error)
        finally:
            with self._changed:
                self._helpers -= 1
                self._changed.notify_all()
            if helper is not None:
                helper.close()

    def _pass_jobs(self, helper: Helper) -> None:
        signatures = helper.signatures()
        with self._changed:
            self._signatures = signatures or self._signatures
            self._changed.notify_all()
        while signatures is not None and (job := self._next()) is not None:
            code = None
            try:
                code = helper.compile(job)
            finally:
                self._take_back(job, code)
            if not helper.alive:
                break

    def _take_back(self, job: Job, code: bytes | None) -> None:
        """Keeps what a helper made of a job; one that it cannot do is compiled here."""
        with self._changed:
            self._taken.remove(job)
            if code is None:
                job.local = True
                self._waiting.appendleft(job)
            job.code = code
            self._changed.notify_all()

    def _next(self) -> Job | None:
        """The last job that waits: the process itself begins at the front."""

        def find() -> Job | None:
            return next((job for job in reversed(self._waiting) if not job.local), None)

        with self._changed:
            self._changed.wait_for(lambda: find() is not None, IDLE_S)
            job = find()
            if job is not None:
                self._waiting.remove(job)
                self._taken.append(job)
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

    def signatures(self) -> Signatures | None:
        """Every kernel's arguments: its first answer; None if it does not come."""
        process = self._process
        if process is not None:
            assert process.stdout is not None
            with contextlib.suppress(OSError, ValueError):
                signatures: Signatures = json.loads(process.stdout.readline())
                return signatures
            self.close()
        return None

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
    if progress is not None and not job.announced:
        job.announced = True
        progress(str(job))
