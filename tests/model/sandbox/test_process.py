"""The sandbox: requests are answered, one that takes too much kills a child, and the next lives."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any

import pytest

from edgerun.errors import InputError, MissingDependencyError
from edgerun.model.sandbox import process
from edgerun.model.sandbox.process import Sandbox

# A module that does what it is told, in the sandbox alone.
TOLD = """
import os, resource, time
def answer(request, payload):
    kind, size = request["do"], request.get("size", 0)
    if kind == "echo":
        return {"text": payload.decode()}
    if kind == "take":
        return {"text": str(len(bytearray(size)))}
    if kind == "abort":
        os.abort()
    if kind == "spin":
        while True:
            pass
    if kind == "core":
        return {"text": str(resource.getrlimit(resource.RLIMIT_CORE))}
    if kind == "sleep":
        time.sleep(100)
    if kind == "say":
        os.write(1 if size else 2, b"here I am\\n")
        return {}
    raise ValueError("two\\nlines")
"""
LIMITS: dict[str, Any] = {"cpu_s": 0.3, "memory_bytes": 32 << 20}
TOO_MUCH = {
    "error": "it needs more time or memory (0.3 s or 32 MB) than is allowed",
    "is_limit": True,
}


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    folder = tmp_path_factory.mktemp("packages")
    (folder / "told").mkdir()
    (folder / "told" / "__init__.py").write_text(TOLD)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(folder)
        patch.setattr(process, "PACKAGES", (*process.PACKAGES, "told"))
        yield


@pytest.fixture
def box(told: None) -> Iterator[Sandbox]:
    box = Sandbox()
    yield box
    box.close()


def echo(box: Sandbox, text: str) -> Any:
    return box.ask("told", {"do": "echo"}, text.encode(), **LIMITS)["text"]


def test_requests_are_answered(box: Sandbox) -> None:
    assert [echo(box, text) for text in ("", "a\nb", "é" * 100_000)] == ["", "a\nb", "é" * 100_000]


def test_a_failure_is_one_line_and_the_child_lives(box: Sandbox) -> None:
    assert echo(box, "a") == "a"
    child = box._process
    assert box.ask("told", {"do": "fail"}, **LIMITS) == {"error": "two"}
    assert echo(box, "b") == "b"
    assert box._process is child


@pytest.mark.parametrize("kind", ["abort", "spin"])
def test_a_request_that_kills_the_child_is_an_error_and_the_next_is_answered(
    box: Sandbox, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process, "WALL_S", 1e4)  # so that processor time alone ends it
    assert box.ask("told", {"do": kind}, **LIMITS) == TOO_MUCH
    assert echo(box, "b") == "b"


@pytest.mark.parametrize("can_poll", [True, False])
def test_a_request_that_sleeps_is_given_up(
    box: Sandbox, monkeypatch: pytest.MonkeyPatch, can_poll: bool
) -> None:
    monkeypatch.setattr(process, "CAN_POLL", can_poll)
    assert echo(box, "a") == "a"
    monkeypatch.setattr(process, "WALL_S", 0.1)
    monkeypatch.setattr(process, "WALL_S_PER_CPU_S", 0)
    assert box.ask("told", {"do": "sleep"}, **LIMITS) == TOO_MUCH
    monkeypatch.undo()
    assert echo(box, "b") == "b"


def test_a_child_that_is_killed_leaves_no_core_file(box: Sandbox) -> None:
    assert box.ask("told", {"do": "core"}, **LIMITS) == {"text": "(0, 0)"}


def test_memory_is_limited_for_each_request_anew(box: Sandbox) -> None:
    for _ in range(3):
        most = box.ask("told", {"do": "take", "size": 16 << 20}, **LIMITS)
        assert most == {"text": str(16 << 20)}
        more = box.ask("told", {"do": "take", "size": 100 << 20}, **LIMITS)
        assert more == {"error": "it needs more memory than is allowed", "is_limit": True}


def test_a_long_request_is_read_whatever_the_one_before_it_may_take(box: Sandbox) -> None:
    assert echo(box, "a") == "a"
    child, text = box._process, "я" * (30 << 20)  # as JSON three times as long
    asked = {"do": "take", "size": 1, "text": text}
    assert box.ask("told", asked, cpu_s=5, memory_bytes=1 << 30) == {"text": "1"}
    assert box._process is child


def test_what_native_code_says_reaches_nobody(
    box: Sandbox, capfd: pytest.CaptureFixture[str]
) -> None:
    assert box.ask("told", {"do": "say"}, **LIMITS) == {}
    assert capfd.readouterr() == ("", "")


def test_a_child_that_was_ended_from_outside_is_replaced(box: Sandbox) -> None:
    assert echo(box, "a") == "a"
    assert box._process is not None
    box._process.kill()
    box._process.wait(60)
    assert echo(box, "b") == "b"


def test_an_interrupt_ends_the_child_and_the_clock(
    box: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    clocks = []

    class Clock(threading.Timer):
        def start(self) -> None:
            super().start()
            clocks.append(self)
            raise EOFError

    assert echo(box, "a") == "a"
    with monkeypatch.context() as patch:
        patch.setattr(process, "CAN_POLL", False)
        patch.setattr(process.threading, "Timer", Clock)
        with pytest.raises(EOFError):
            echo(box, "b")
    assert [clock.finished.is_set() for clock in clocks] == [True]
    assert box._process is None
    assert echo(box, "c") == "c"


def test_what_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(sys, "executable", "")
        with pytest.raises(MissingDependencyError, match="no Python executable"):
            Sandbox().start()
    monkeypatch.setattr(process, "PACKAGES", ("no_such_package",))
    with pytest.raises(MissingDependencyError, match="pip install no_such_package"):
        Sandbox().start()


@pytest.mark.parametrize("at_once", [False, True])
def test_a_child_that_does_not_start_is_an_error(
    box: Sandbox, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, at_once: bool
) -> None:
    class EndedPopen(subprocess.Popen):  # type: ignore[type-arg]
        def __init__(self, *arguments: Any, **named: Any) -> None:
            super().__init__(*arguments, **named)
            self.wait()

    if at_once:  # before anything is written to it
        monkeypatch.setattr(process.subprocess, "Popen", EndedPopen)
    (tmp_path / "broken.py").write_text("1 / 0")
    monkeypatch.setattr(process, "WORKER", tmp_path / "broken.py")
    with pytest.raises(MissingDependencyError, match="does not start"):
        echo(box, "a")


def test_threads_that_ask_at_once_share_a_sandbox(monkeypatch: pytest.MonkeyPatch) -> None:
    boxes: list[Sandbox] = []
    together = threading.Barrier(4)

    class Slow(Sandbox):
        def __init__(self) -> None:
            super().__init__()
            together.wait(20)

    monkeypatch.setattr(process, "Sandbox", Slow)
    threads = [
        threading.Thread(target=lambda: boxes.append(process.sandbox("a test"))) for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({id(box) for box in boxes}) == 1
    assert process.sandbox("a test") is boxes[0]


FORK = """
import os, signal, sys
from edgerun.model.chat.template import ChatTemplate
from edgerun.model.sandbox.process import sandbox
template = ChatTemplate("{{ messages[0].content }}")
def ask(name):
    for number in range(20):
        text = f"{name} {number}"
        assert template.render([{"role": "user", "content": text}]) == text
ask("before")
before = sandbox()._process.pid
child = os.fork()
signal.alarm(100)
ask("parent" if child else "child")
assert (sandbox()._process.pid == before) == bool(child)
if child:
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    ask("after")
    sys.exit(status)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
def test_a_forked_process_asks_a_child_of_its_own_and_ends() -> None:
    done = subprocess.run(
        [sys.executable, "-c", FORK], capture_output=True, text=True, timeout=250, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


FORK_WHILE_ASKING = """
import os, signal, threading, time
from edgerun.model.chat.template import ChatTemplate
from edgerun.model.sandbox.process import sandbox
template = ChatTemplate("{{ messages | length }}")
question = [{"role": "user", "content": "x" * (1 << 20)}]
assert template.render(question) == "1"
worker = sandbox()._process.pid
os.kill(worker, signal.SIGSTOP)  # so that the thread is in the middle of its question
thread = threading.Thread(target=template.render, args=[question])
thread.start()
while sandbox()._lock.acquire(blocking=False):
    sandbox()._lock.release()
    time.sleep(0.01)
time.sleep(0.1)
child = os.fork()
if child == 0:
    os._exit(0)
for _ in range(200):
    ended, status = os.waitpid(child, os.WNOHANG)
    if ended:
        break
    time.sleep(0.02)
else:
    os.kill(child, signal.SIGKILL)
os.kill(worker, signal.SIGCONT)
thread.join()
assert ended, "the forked process hangs"
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
def test_a_process_that_is_forked_while_a_thread_asks_goes_on() -> None:
    command = [sys.executable, "-W", "ignore", "-c", FORK_WHILE_ASKING]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_packages_are_found_wherever_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that some requests need may be missing, others not."""
    places = {name: f"/{name}-here/{name}/__init__.py" for name in ("minijinja", "llguidance")}

    def find(name: str) -> ModuleSpec | None:
        return ModuleSpec(name, None, origin=places[name]) if name in places else None

    monkeypatch.setattr(process, "PACKAGES", ("minijinja", "tokenizers"))
    monkeypatch.setattr(process.importlib.util, "find_spec", find)
    with pytest.raises(MissingDependencyError, match="tokenizers is not installed: pip install"):
        process._module_path()
    places["tokenizers"] = "/elsewhere/tokenizers/__init__.py"
    assert process._module_path()[1:] == ["/minijinja-here", "/elsewhere", "/llguidance-here"]
    del places["llguidance"]
    assert process._module_path()[1:] == ["/minijinja-here", "/elsewhere"]


def test_a_handler_of_a_signal_is_told_that_its_thread_asks(
    box: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would wait for itself, and all other threads with it."""
    exchange = box._exchange

    def interrupted(message: bytes, seconds: float) -> bytes:
        with pytest.raises(InputError, match="while its thread does"):
            echo(box, "inner")
        return exchange(message, seconds)

    monkeypatch.setattr(box, "_exchange", interrupted)
    assert [echo(box, text) for text in ("a", "b")] == ["a", "b"]
