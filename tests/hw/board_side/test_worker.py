"""The driver in a process of its own: the same answers, and a clean end however it goes wrong."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from edgerun_hw.board_side import messages as msg
from edgerun_hw.devices import client as client_module
from edgerun_hw.devices.client import WorkerClient
from edgerun_hw.overlay.driver import Tlmm
from edgerun_hw.overlay.errors import (
    CommandError,
    OverlayTimeoutError,
    WorkerError,
    WrongOverlayError,
)
from edgerun_hw.overlay.packing import LookupMode
from edgerun_hw.overlay.port import Ticket
from edgerun_hw.simulate.fake import FakeDevice
from tests.hw.support.problems import random_problem

PYTHON = Path(sys.executable)
LAST_LINE = "sys.exit(importlib.import_module(module).main([file, device]))\n"
FAULTY = """
import socket
from edgerun_hw.overlay import register_map as regs
from edgerun_hw.overlay.driver import Tlmm
from edgerun_hw.simulate.fake import FakeDevice, Faults
from edgerun_hw.overlay.geometry import PRESETS
from edgerun_hw.board_side.worker import Worker
device = FakeDevice(PRESETS["tiny"], faults=Faults(%s), memory_bytes=1 << 24)
connection = socket.socket(fileno=int(file))
Worker(Tlmm(device, watchdog_cycles=5000, timeout_cycles=20000), connection).serve()
"""
TALKS = """
import socket
from edgerun_hw.board_side import messages as msg
from edgerun_hw.overlay.command import Capabilities
connection = socket.socket(fileno=int(file))
connection.recv(100)
connection.send(msg.encode(msg.Welcome(Capabilities(1, 1, 8, 64, False, True, True, 40)), 1))
connection.recv(100)
%s
connection.recv(100)
"""


@pytest.fixture
def start(monkeypatch):
    """Starts workers; with `code` in place of the real one. Checks that nothing is left of them."""
    clients: list[WorkerClient] = []
    before = _open_files()

    def start(device: str = "fake:tiny", code: str | None = None, **options) -> WorkerClient:
        if code is not None:
            assert LAST_LINE in client_module.BOOT
            monkeypatch.setattr(client_module, "BOOT", client_module.BOOT.replace(LAST_LINE, code))
        clients.append(WorkerClient(PYTHON, device, **options))
        return clients[-1]

    yield start
    for client in clients:
        client.close()
        assert not _exists(client.pid)
    clients.clear()
    gc.collect()
    assert _open_files() <= before


def _open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


def _exists(pid: int) -> bool:
    """Also true of a zombie."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.mark.parametrize("preset", ["tiny-prefill", "decode-300"])
def test_same_answers_as_in_process(start, preset):
    overlay = start(f"fake:{preset}")
    modes = list(LookupMode)
    problems = [random_problem(overlay, seed, modes[seed % 2]) for seed in range(12)]
    # More than the overlay's queue and the worker's patience hold, and several waits.
    tickets = [overlay.submit_all([command] * 3) for command, _ in problems]
    for ticket in tickets[::5]:
        overlay.wait(ticket)
    overlay.wait(tickets[-1])
    assert all(right() for _, right in problems)
    assert overlay.counters().lookups == 3 * sum(c.tiles * c.row_beats for c, _ in problems)


def test_capabilities_are_the_overlays(start):
    assert start().capabilities == Tlmm(FakeDevice()).capabilities


def test_many_commands_in_one_call(start):
    overlay = start()
    command, right = random_problem(overlay)
    overlay.wait(overlay.submit_all([command] * (msg.MAX_COMMANDS + 10)))
    assert right()


def test_buffers_are_shared_and_freed(start):
    overlay = start()
    buffer = overlay.allocate(5000)
    buffer.array[:] = 7
    buffer.flush()
    overlay.counters()  # an answer: the flush before it was carried out
    buffer.array[:] = 0
    buffer.invalidate()
    assert (buffer.array == 7).all()
    address = buffer.address
    buffer.free()
    buffer.free()
    with pytest.raises(ValueError, match="freed"):
        buffer.flush()
    assert overlay.allocate(5000).address == address


def test_what_was_handed_over_takes_memory_once(start):
    overlay = start()
    command, right = random_problem(overlay)
    before = [_memory_files(pid) for pid in (os.getpid(), overlay.pid)]
    buffer = overlay.allocate(5000)
    buffer.array[:] = 7
    buffer.hand_over()
    for use in (buffer.flush, buffer.invalidate, buffer.hand_over, lambda: buffer.array):
        with pytest.raises(ValueError, match="handed over"):
            use()
    overlay.wait(overlay.submit(command))  # an answer: what was posted before is done
    assert right()
    assert [_memory_files(pid) for pid in (os.getpid(), overlay.pid)] == before
    address = buffer.address
    buffer.free()
    buffer.free()
    assert overlay.allocate(5000).address == address


def _memory_files(pid: int) -> int:
    return Path(f"/proc/{pid}/maps").read_text().count("memfd:edgerun-buffer")


def test_buffers_take_no_file_descriptors(start):
    overlay = start()
    before = _open_files()
    buffers = [overlay.allocate(100) for _ in range(1100)]
    assert _open_files() == before
    files = len(os.listdir(f"/proc/{overlay.pid}/fd"))
    assert files < 20
    assert len({buffer.address for buffer in buffers}) == 1100


def test_too_large_a_buffer_is_a_memory_error_and_work_goes_on(start):
    overlay = start()
    with pytest.raises(MemoryError, match="in one piece"):
        overlay.allocate(2 << 30)
    with pytest.raises(ValueError, match="a buffer has 1 to"):
        overlay.allocate(0)
    command, right = random_problem(overlay)
    overlay.wait(overlay.submit(command))
    assert right()


def test_impossible_commands_never_leave_the_client(start):
    overlay = start()
    command, _ = random_problem(overlay)
    with pytest.raises(ValueError, match="no commands"):
        overlay.submit_all([])
    bad = type(command)(x=0, y=0, weights=(0,), row_beats=99, tiles=1)
    with pytest.raises(ValueError, match="row_beats is 99"):
        overlay.submit(bad)
    with pytest.raises(ValueError, match="not submitted"):
        overlay.wait(Ticket(0, 0))


def test_error_of_the_overlay_is_typed_and_ends_with_a_reset(start):
    overlay = start(code=FAULTY % "wedged={3}")
    command, right = random_problem(overlay)
    ticket = overlay.submit_all([command] * 20)
    for _ in range(2):
        with pytest.raises(CommandError, match="watchdog at command 3") as info:
            overlay.wait(ticket)
        assert (info.value.tag, info.value.flags) == (3, ("watchdog",))
    overlay.reset()
    with pytest.raises(CommandError, match="dropped by a reset"):
        overlay.wait(ticket)
    overlay.wait(overlay.submit_all([command] * 20))
    assert right()


def test_overlay_that_stays_silent_times_out(start):
    overlay = start(code=FAULTY % "wedged={0}, silent=True")
    command, _ = random_problem(overlay)
    with pytest.raises(OverlayTimeoutError, match="no progress"):
        overlay.wait(overlay.submit(command))


def test_memory_can_be_freed_after_an_error(start):
    overlay = start(code=FAULTY % "errors={0: regs.ERROR_OVERRUN}")
    buffer = overlay.allocate(64)
    command, _ = random_problem(overlay)
    with pytest.raises(CommandError, match="overrun"):
        overlay.wait(overlay.submit(command))
    with pytest.raises(CommandError):
        overlay.allocate(64)
    buffer.free()
    overlay.reset()
    assert overlay.allocate(64).address == buffer.address


@pytest.mark.parametrize("device", ["fake:huge", "abacus:1"])
def test_unknown_device_is_refused(device):
    with pytest.raises(WrongOverlayError, match="there are"):
        WorkerClient(PYTHON, device)


def test_wrong_overlay_is_reported_at_the_start(start):
    with pytest.raises(WorkerError, match="WrongOverlayError: the ID register reads"):
        start(code=FAULTY % "identity=1")


def test_missing_interpreter_is_named(tmp_path):
    with pytest.raises(WorkerError, match="no-python cannot be run .* EDGERUN_PYNQ_PYTHON"):
        WorkerClient(tmp_path / "no-python", "fake:tiny")


def test_interpreter_without_pynq_is_explained():
    with pytest.raises(WorkerError, match="No module named 'pynq'"):
        WorkerClient(PYTHON, "pynq:overlay.bit")


def test_worker_sees_nothing_of_the_clients_environment(start, monkeypatch, tmp_path):
    # Another NumPy on the path would break the one that pynq was built for.
    (tmp_path / "numpy.py").write_text("raise SystemExit('the wrong numpy')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    start()


def test_killed_worker_is_an_error_for_good(start):
    overlay = start()
    buffer = overlay.allocate(16)
    command, _ = random_problem(overlay)
    ticket = overlay.submit(command)
    os.kill(overlay.pid, signal.SIGKILL)
    with pytest.raises(WorkerError, match="is gone; it ended with status -9"):
        overlay.wait(ticket)
    for use in (overlay.reset, overlay.counters, buffer.flush, lambda: overlay.allocate(1)):
        with pytest.raises(WorkerError, match="is gone"):
            use()
    buffer.free()
    assert not _exists(overlay.pid)


def test_hanging_worker_is_ended(start, monkeypatch):
    monkeypatch.setattr(client_module, "FAREWELL_S", 0.2)
    overlay = start(reply_timeout_s=1)
    os.kill(overlay.pid, signal.SIGSTOP)
    with pytest.raises(WorkerError, match=r"did not answer for 1 s"):
        overlay.counters()
    assert not _exists(overlay.pid)


def test_worker_that_takes_no_requests_is_ended(start, monkeypatch):
    monkeypatch.setattr(client_module, "FAREWELL_S", 0.2)
    overlay = start(reply_timeout_s=1)
    command, _ = random_problem(overlay)
    os.kill(overlay.pid, signal.SIGSTOP)
    with pytest.raises(WorkerError, match="takes no requests"):
        for _ in range(10_000):
            overlay.submit_all([command] * 200)


@pytest.mark.parametrize(
    ("says", "message"),
    [
        ("connection.send(b'hello')", "talks nonsense"),
        ("connection.send(bytes(70000))", "talks nonsense"),
        ("connection.send(msg.encode(msg.Pending(), 2))", "answers ReadCounters with Pending"),
        ("connection.send(msg.encode(msg.Failed(5, 0, (), 'x'), 2))", "gave up: x"),
        ("raise SystemExit('out of luck')", "status 1; its last words: out of luck"),
        ("connection.close()", "is gone"),
    ],
)
def test_nonsense_of_a_worker_is_an_error(start, monkeypatch, says, message):
    monkeypatch.setattr(client_module, "FAREWELL_S", 60)  # all of them leave by themselves
    overlay = start(code=TALKS % says)
    with pytest.raises(WorkerError, match=message):
        overlay.counters()
    assert not _exists(overlay.pid)


def test_interrupted_call_does_not_confuse_the_next(start, monkeypatch):
    overlay = start()
    command, right = random_problem(overlay)

    def interrupted():
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(overlay, "_receive", interrupted)
        for call in (overlay.counters, lambda: overlay.allocate(100)):
            with pytest.raises(KeyboardInterrupt):
                call()
    overlay.wait(overlay.submit(command))
    assert right()
    buffer = overlay.allocate(16)
    buffer.array[:] = 1
    buffer.flush()
    buffer.invalidate()  # in order: copies back what the flush before it copied there
    assert (buffer.array == 1).all()


def test_forgotten_client_ends_its_worker(start):
    pid = WorkerClient(PYTHON, "fake:tiny").pid
    gc.collect()
    assert not _exists(pid)


def test_worker_leaves_when_its_client_is_killed():
    code = (
        "import sys, time; from pathlib import Path\n"
        "from edgerun_hw.devices.client import WorkerClient\n"
        "client = WorkerClient(Path(sys.executable), 'fake:tiny')\n"
        "print(client.pid, flush=True); time.sleep(60)"
    )
    command = [sys.executable, "-c", code]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=_environment()) as process:
        pid = int(process.stdout.readline())
        process.kill()
    for _ in range(1000):
        if not _running(pid):
            return
        time.sleep(0.05)
    pytest.fail("the worker outlived its client")


def _environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}


def _running(pid: int) -> bool:
    """A zombie whose parent does not reap, as in a container without an init, is not running."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"
