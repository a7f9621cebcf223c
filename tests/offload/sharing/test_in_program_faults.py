"""Faults of a device that shares layers inside a program: none changes a bit of a reply."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgerun.errors import Cancelled
from edgerun.kernels.run import commands as words
from edgerun.offload.sharing.device import Answer, DeviceError
from edgerun.offload.sharing.in_program import listener
from edgerun.offload.sharing.in_program.learning import Learner
from edgerun.offload.sharing.session import Session
from edgerun.offload.standin import StandinBackend
from edgerun.offload.standin.device import StandinDevice
from edgerun.state import Batch
from tests.support.sharing import (
    ALL,
    F32,
    TOKENS,
    Even,
    Helpful,
    logits_of,
    running,
    session_of,
    standin_like,
    tally_of,
)

FORM = "olmoe", "int4"
SOME = "memory=40K,link=1G"  # room for a few of them


@pytest.fixture(scope="module")
def expected() -> list[F32]:
    return logits_of(*FORM, None)


def struck(
    expected: list[F32], token: int, strike: Callable[[Session], object], form: Any = FORM
) -> tuple[int, str]:
    """How often the device began anew after something happened to it, and how it ended."""
    ends = []

    def event(backend: StandinBackend, now: int) -> None:
        session = session_of(backend)
        if now == token:
            assert tally_of(backend).with_device > 0
            strike(session)
        if now == TOKENS - 1:
            ends.append((session.resets, session.failure))

    np.testing.assert_array_equal(logits_of(*form, standin_like(Helpful), event), expected)
    (end,) = ends
    return end


def kill(session: Session) -> None:
    device = session.device
    assert isinstance(device, StandinDevice) and device._process is not None
    device._process.kill()
    device._process.wait()


def test_a_device_that_ends_is_started_again(expected: list[F32]) -> None:
    assert struck(expected, 10, kill) == (1, "")


@pytest.mark.parametrize("device", [ALL, SOME])
def test_a_layer_may_go_wrong_behind_one_that_went_well(
    device: str, expected: list[F32], monkeypatch: pytest.MonkeyPatch
) -> None:
    send, commands = StandinDevice.send, []

    def fail(self: StandinDevice, *given: Any) -> None:
        if threading.current_thread().name == listener.THREAD:
            commands.append(given)
            if len(commands) == 20:  # of two in a token
                raise DeviceError("it is out of order")
        send(self, *given)

    monkeypatch.setattr(StandinDevice, "send", fail)
    resets = []

    def look(backend: StandinBackend, token: int) -> None:
        if token == TOKENS - 1:
            resets.append(session_of(backend).resets)
        time.sleep(1e-3)  # for the link

    np.testing.assert_array_equal(logits_of(*FORM, standin_like(Helpful, device), look), expected)
    assert resets == [1] and len(commands) > 60


def test_who_listened_before_ctrl_c_obeys_nothing_any_more(
    expected: list[F32], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It came when the thread had begun and nobody knew of it yet."""
    monkeypatch.setattr(listener, "SPINNING_S", 60.0)  # so that it looks, and does not sleep
    start, is_due = listener.Listener.__init__, threading.Event()

    def interrupted(self: listener.Listener, *given: Any) -> None:
        start(self, *given)
        if not is_due.is_set():
            is_due.set()
            raise KeyboardInterrupt

    monkeypatch.setattr(listener.Listener, "__init__", interrupted)
    with running(*FORM, standin_like(Helpful)) as (backend, programs, store, _):
        sequence = store.open()
        store.reserve(sequence, 30)
        with pytest.raises(KeyboardInterrupt):
            programs.run(Batch.of([7], 0, sequence), store)
        for length in range(20):
            programs.run(Batch.of([length], length, sequence), store)
            store.commit(sequence, length + 1)
        assert session_of(backend).resets == 0 and tally_of(backend).with_device > 30
        names = [thread.name for thread in threading.enumerate()]
        assert names.count(listener.THREAD) == 1


def test_what_has_a_state_goes_on_from_there() -> None:
    """A run that was computed twice would move it on twice."""
    form = "granitemoehybrid-experts", "int4"
    assert struck(logits_of(*form, None), 10, kill, form) == (1, "")


def test_a_device_that_is_late_is_not_waited_for(
    expected: list[F32], monkeypatch: pytest.MonkeyPatch
) -> None:
    send, waited_for = StandinDevice.send, list[Session]()

    def slow(self: StandinDevice, *given: Any) -> None:
        if waited_for:
            session, end = waited_for.pop(), time.monotonic() + 20
            while session.control.fault != words.LATE and time.monotonic() < end:
                time.sleep(1e-3)
        send(self, *given)

    def strike(session: Session) -> None:
        session.patience_s = 0.05
        waited_for.append(session)

    monkeypatch.setattr(StandinDevice, "send", slow)
    assert struck(expected, 10, strike) == (1, "")
    assert not waited_for


def test_other_numbers_are_found_and_thrown_away(
    expected: list[F32], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("edgerun.offload.sharing.in_program.control.CHECK_EVERY", 1)

    def garble(session: Session) -> None:
        device = session.device
        assert isinstance(device, StandinDevice)
        device._memory[: device.sizes.slots * device.sizes.slot_bytes] ^= 0x55

    assert struck(expected, 10, garble) == (1, "")


def test_an_answer_to_something_else_is_a_fault(
    expected: list[F32], monkeypatch: pytest.MonkeyPatch
) -> None:
    answer, wrong = StandinDevice.answer, threading.Event()

    def other(self: StandinDevice, patience_s: float) -> Answer:
        answered = answer(self, patience_s)
        return Answer(answered.number + 1) if wrong.is_set() else answered

    monkeypatch.setattr(StandinDevice, "answer", other)
    resets, failure = struck(expected, 10, lambda session: wrong.set())
    assert resets == 1 and "it answered command" in failure


def test_ctrl_c_between_runs_begins_a_new_life(
    expected: list[F32], monkeypatch: pytest.MonkeyPatch
) -> None:
    learn, is_due = Learner.learn, threading.Event()

    def interrupted(self: Learner) -> int:
        if is_due.is_set():
            is_due.clear()
            raise KeyboardInterrupt
        return learn(self)

    monkeypatch.setattr(Learner, "learn", interrupted)
    with running(*FORM, standin_like(Helpful)) as (backend, programs, store, _):
        sequence = store.open()
        store.reserve(sequence, 30)
        for length in range(20):
            batch = Batch.of([length], length, sequence)
            if length == 10:
                process = session_of(backend).device._process
                is_due.set()
                with pytest.raises(KeyboardInterrupt):
                    programs.run(batch, store)
                assert process.poll() is not None
            shared = programs.run(batch, store)["logits"].copy()
            store.commit(sequence, length + 1)
        assert session_of(backend).resets == 0 and tally_of(backend).with_device > 30
    with running(*FORM, None) as (_, programs, store, _):
        sequence = store.open()
        store.reserve(sequence, 30)
        for length in range(20):
            alone = programs.run(Batch.of([length], length, sequence), store)["logits"]
            store.commit(sequence, length + 1)
        np.testing.assert_array_equal(shared, alone)


def test_a_forked_child_has_commands_of_its_own() -> None:
    with running(*FORM, standin_like(Helpful)) as (backend, programs, store, _):

        def logits() -> F32:
            sequence = store.open()
            store.reserve(sequence, 1)
            values = programs.run(Batch.of([7], 0, sequence), store)["logits"].copy()
            store.close(sequence)
            return np.asarray(values)

        first, session = logits(), session_of(backend)
        process = session.device._process
        read, write = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                before = tally_of(backend).with_device
                is_same = np.array_equal(logits(), first)
                is_own = session.device._process.pid != process.pid and not session.failure
                # The first layer's one expert, by which the device was tested, is there for sure.
                is_used = tally_of(backend).layers and tally_of(backend).with_device >= before
                session.close()
                os.write(write, bytes([is_same, is_own, bool(is_used)]))
            finally:
                os._exit(0)
        os.close(write)
        assert os.read(read, 3) == b"\1\1\1"
        os.waitpid(child, 0)
        os.close(read)
        before = tally_of(backend).with_device
        np.testing.assert_array_equal(logits(), first)
        assert tally_of(backend).with_device > before and session.resets == 0


def test_a_run_that_nobody_waits_for_takes_its_command_along(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A call in parts may end between a layer's command and what comes of it."""
    monkeypatch.setattr("edgerun.backends.cpu.executable.MOST_PRODUCTS", 1)
    monkeypatch.setattr("edgerun.backends.cpu.parts.MOST_PRODUCTS", 1)
    with running(*FORM, standin_like(Helpful), rows=64) as (backend, programs, store, _):
        slot, session = store.open(), session_of(backend)
        store.reserve(slot, 80)
        for length in (5, 10, 15, 20):
            programs.run(Batch.of([7, 8, 9, 10, length], length - 5, slot), store)
            store.commit(slot, length)
        given = int(session.control.words[words.GIVEN])
        batch = Batch.of([1, 2, 3, 4, 5], 20, slot)
        cancelled = replace(batch, is_cancelled=lambda: session.control.words[words.GIVEN] > given)
        with pytest.raises(Cancelled):
            programs.run(cancelled, store)
        assert not session.control.is_waiting
        for _ in range(3):
            programs.run(Batch.of(list(range(40)), 20, slot), store)
        assert (session.resets, session.failure) == (0, "")


def test_nothing_is_learned_of_a_run_that_went_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its times are those of waiting."""
    backend, send = standin_like(Even), StandinDevice.send

    def fail(self: StandinDevice, *given: Any) -> None:
        if threading.current_thread().name == listener.THREAD:
            raise DeviceError("it is out of order")
        send(self, *given)

    with running(*FORM, backend) as (_, programs, store, _):
        sequence = store.open()
        store.reserve(sequence, 2)
        monkeypatch.setattr(StandinDevice, "send", fail)
        programs.run(Batch.of([7], 0, sequence), store)
        tally, session = tally_of(backend), session_of(backend)
        assert tally.with_device == 0
        assert (session.failure, session.resets) == ("", 1)
        assert session.control.words[words.OPEN] == session.control.fault == 0
        programs.run(Batch.of([7], 1, sequence), store)
        assert session.failure == "it is out of order" and tally.with_device == 0


def test_nothing_is_left_of_a_model_that_was_closed() -> None:
    def pipes() -> int:
        files = [os.path.realpath(file) for file in Path("/proc/self/fd").iterdir()]
        return sum("/pipe:" in file for file in files)

    def run_and_close() -> int:
        with running(*FORM, standin_like(Helpful)) as (backend, programs, store, _):
            sequence = store.open()
            store.reserve(sequence, 1)
            programs.run(Batch.of([7], 0, sequence), store)
            assert tally_of(backend).with_device > 0
            names = [thread.name for thread in threading.enumerate()]
            assert names.count(listener.THREAD) == 1
        assert listener.THREAD not in [thread.name for thread in threading.enumerate()]
        return pipes()

    assert run_and_close() == run_and_close()
