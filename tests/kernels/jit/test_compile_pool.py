"""Kernels compiled by several processes, and what happens when helpers fail."""

import contextlib
import gc
import os
import subprocess
import sys
import threading

import pytest

from edgerun.kernels.jit import compile_pool
from edgerun.kernels.jit.catalogue import compile_named, kernels
from edgerun.kernels.jit.compile_pool import CompilePool, Helper, Job


def jobs(count: int) -> list[Job]:
    return [Job(f"kernel{index}", {}) for index in range(count)]


def code_of(job: Job) -> bytes:
    return job.name.encode()


class FakeHelper:
    """Answers in this process; the calls of the class attribute decide how."""

    answers = staticmethod(lambda job: b"helped " + code_of(job))

    def __init__(self) -> None:
        self.alive = True

    def signatures(self) -> dict[str, str]:
        return {"kernel0": "rows"}

    def compile(self, job: Job) -> bytes | None:
        code = type(self).answers(job)
        self.alive = code is not None
        return code

    def close(self) -> None:
        self.alive = False


def submitted(pool: CompilePool, count: int) -> list[Job]:
    submissions = jobs(count)
    for job in submissions:
        pool.submit(job)
    return submissions


def test_without_helpers_everything_is_compiled_here_and_told_once() -> None:
    order: list[str] = []

    def compile_here(job: Job) -> bytes:
        order.append(job.name)
        return code_of(job)

    pool, told = CompilePool(compile_here, most=0), []
    submissions = submitted(pool, 3)
    for job in reversed(submissions):
        assert pool.finish(job, told.append) == code_of(job)
    # The one that is wanted comes first.
    assert order == ["kernel2", "kernel1", "kernel0"]
    assert told == order


def test_helpers_take_what_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compile_pool, "Helper", FakeHelper)
    helped = threading.Event()

    def compile_here(job: Job) -> bytes:
        helped.wait(10)
        return code_of(job)

    def answer(job: Job) -> bytes:
        helped.set()
        return b"helped " + code_of(job)

    monkeypatch.setattr(FakeHelper, "answers", staticmethod(answer))
    pool, told = CompilePool(compile_here, most=2), []
    submissions = submitted(pool, 4)
    results = [pool.finish(job, told.append) for job in submissions]
    assert any(code.startswith(b"helped") for code in results)
    assert all(code.endswith(code_of(job)) for code, job in zip(results, submissions, strict=True))
    assert sorted(told) == [job.name for job in submissions]


@pytest.mark.parametrize("here", [True, False])
def test_a_helper_that_dies_costs_nothing_but_time(
    here: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compile_pool, "Helper", FakeHelper)
    monkeypatch.setattr(FakeHelper, "answers", staticmethod(lambda job: None))
    pool = CompilePool(code_of, most=2, prefers_here=lambda: here)
    submissions = submitted(pool, 5)
    assert [pool.finish(job) for job in submissions] == [code_of(job) for job in submissions]


def test_without_a_compiler_here_helpers_do_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compile_pool, "Helper", FakeHelper)
    monkeypatch.setattr(FakeHelper, "answers", staticmethod(lambda job: b"helped " + code_of(job)))
    pool, told = CompilePool(code_of, most=1, prefers_here=lambda: False), []
    assert pool.signatures() == {"kernel0": "rows"}
    for job in submitted(pool, 5):
        assert pool.finish(job, told.append) == b"helped " + code_of(job)
    assert told == [job.name for job in jobs(5)]


def test_helpers_that_cannot_start_know_no_signatures(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    pool = CompilePool(code_of, most=1, prefers_here=lambda: False)
    assert pool.signatures() is None
    assert CompilePool(code_of, most=0).signatures() is None
    assert [pool.finish(job) for job in submitted(pool, 3)] == [code_of(job) for job in jobs(3)]


def test_without_more_threads_everything_is_compiled_here(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", fail)
    pool = CompilePool(code_of, most=2, prefers_here=lambda: False)
    assert pool.signatures() is None
    assert [pool.finish(job) for job in submitted(pool, 3)] == [code_of(job) for job in jobs(3)]


@pytest.mark.parametrize("method", ["__init__", "signatures", "compile"])
def test_whatever_a_helper_raises_is_waited_for_by_nobody(
    method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise MemoryError

    monkeypatch.setattr(compile_pool, "Helper", FakeHelper)
    monkeypatch.setattr(FakeHelper, method, fail)
    pool = CompilePool(code_of, most=1, prefers_here=lambda: False)
    assert (pool.signatures() is None) == (method != "compile")
    assert [pool.finish(job) for job in submitted(pool, 3)] == [code_of(job) for job in jobs(3)]


def test_helpers_compile_whatever_somebody_debugs(monkeypatch: pytest.MonkeyPatch) -> None:
    """With this variable Numba compiles nothing, and loops in Python are what others debug."""
    monkeypatch.setenv("NUMBA_DISABLE_JIT", "1")
    prepare, _, _ = compile_pool.HELPER.partition("from edgerun")
    says = "import json; print(json.dumps(dict(kernel=os.environ['NUMBA_DISABLE_JIT'])))"
    monkeypatch.setattr(compile_pool, "HELPER", prepare + says)
    helper = compile_pool.Helper()
    assert helper.signatures() == {"kernel": "0"}
    helper.close()


def test_an_error_reaches_whoever_wants_that_kernel() -> None:
    def compile_here(job: Job) -> bytes:
        if job.name == "kernel0":
            raise ValueError("does not compile")
        return code_of(job)

    pool = CompilePool(compile_here, most=0)
    bad, good = submitted(pool, 2)
    assert pool.finish(good) == code_of(good)
    with pytest.raises(ValueError, match="does not compile"):
        pool.finish(bad)


def test_an_interrupt_is_not_kept_as_the_error_of_a_kernel() -> None:
    class Interrupt(BaseException):
        """As KeyboardInterrupt, which would end the test run."""

    interrupts: list[BaseException] = [Interrupt()]

    def compile_here(job: Job) -> bytes:
        if interrupts:
            raise interrupts.pop()
        return code_of(job)

    pool = CompilePool(compile_here, most=0)
    (job,) = submitted(pool, 1)
    with pytest.raises(Interrupt):
        pool.finish(job)
    assert pool.finish(job) == code_of(job)


def test_of_two_that_want_a_kernel_one_goes_on_if_the_other_is_interrupted() -> None:
    class Interrupt(BaseException):
        pass

    begun, waits, codes = threading.Event(), threading.Event(), []

    def compile_here(job: Job) -> bytes:
        if begun.is_set():
            return code_of(job)
        begun.set()
        waits.wait(60)
        raise Interrupt

    def first() -> None:
        with contextlib.suppress(Interrupt):
            pool.finish(job)

    pool = CompilePool(compile_here, most=0)
    (job,) = submitted(pool, 1)
    threads = [
        threading.Thread(target=target, daemon=True)
        for target in (first, lambda: codes.append(pool.finish(job, lambda _: waits.set())))
    ]
    for thread in threads:
        thread.start()
        assert begun.wait(60)
    for thread in threads:
        thread.join(60)
    assert codes == [code_of(job)]


def test_a_kernel_that_could_not_be_told_of_still_waits() -> None:
    def complain(text: str) -> None:
        raise BrokenPipeError

    pool = CompilePool(code_of, most=0)
    (job,) = submitted(pool, 1)
    with pytest.raises(BrokenPipeError):
        pool.finish(job, complain)
    assert list(pool._waiting) == [job]
    assert pool.finish(job) == code_of(job)


FORK = """
import os, signal, sys, threading
from edgerun.kernels.jit import compile_pool
from edgerun.kernels.jit import service
from edgerun.kernels.jit.compile_pool import Job

taken, told = threading.Event(), threading.Event()

class Slow:
    alive = True
    def signatures(self): return {}
    def compile(self, job):
        taken.set()
        told.wait(100)
        return b"helped"
    def close(self): pass

compile_pool.Helper = Slow
pool = service._pool()
pool.compile_here, pool.most, pool.prefers_here = lambda job: b"here", 1, lambda: False
jobs = [Job("a", {}), Job("b", {})]
for job in jobs:
    pool.submit(job)
assert taken.wait(100)
child = os.fork()
signal.alarm(100)
if child:
    told.set()
assert {pool.finish(job) for job in jobs} == {b"helped" if child else b"here"}
if child:
    sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
def test_a_forked_process_compiles_what_its_parents_helpers_had() -> None:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", FORK],
        capture_output=True,
        text=True,
        timeout=250,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_a_helper_process_makes_the_same_code() -> None:
    helper = Helper()
    try:
        signatures = helper.signatures()
        assert signatures is not None
        assert signatures["gate"] == kernels()["gate"].arguments
        assert signatures["runner-master"] == ""
        job = Job("gate", {"activation": "relu2", "lanes": 8})
        code = helper.compile(job)
        assert code == compile_named("gate", job.params)
        assert helper.compile(Job("no such kernel", {})) is None
        assert helper.alive
    finally:
        helper.close()
    assert not helper.alive


def test_a_process_that_cannot_start_helps_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    helper = Helper()
    assert not helper.alive
    assert helper.compile(jobs(1)[0]) is None


def test_a_frozen_program_starts_no_helpers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "frozen", True, raising=False)
    assert compile_pool.helpers_allowed() == 0


@pytest.mark.parametrize("collects", [True, False])
def test_after_compiling_garbage_is_collected_if_it_was_before(collects: bool) -> None:
    try:
        (gc.enable if collects else gc.disable)()
        compile_named("add", {"lanes": 4})
        assert gc.isenabled() == collects
    finally:
        gc.enable()
