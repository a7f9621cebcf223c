"""Layers of replies that are shared inside a program: its bits, whatever becomes of the device."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from edgerun.backends.base import Phase
from edgerun.kernels.run import commands as words
from edgerun.offload.estimates import Estimate, Estimates
from edgerun.offload.sharing.device import Answer, DeviceError
from edgerun.offload.sharing.in_program import listener
from edgerun.offload.sharing.in_program.learning import Learner
from edgerun.offload.sharing.in_program.program import SharedProgram
from edgerun.offload.sharing.session import Session
from edgerun.offload.sharing.tally import Tally
from edgerun.offload.sharing.trials import Trials
from edgerun.offload.standin import StandinBackend
from edgerun.offload.standin.device import StandinDevice
from edgerun.state import Batch
from tests.support.sharing import F32, TOKENS, Fixed, logits_of, running, standin

FORM = "olmoe", "int4"
ALL, SOME = "memory=8M", "memory=40K,link=1G"
TOP_K = 3
Event = Callable[[StandinBackend, int], None]


class Even(StandinBackend):
    """A stand-in that seems as fast as the processor, and goes on seeming so."""

    prices = 1e-3, 1e-3

    def assumed_costs(self, shape: tuple[int, int], nbytes: int) -> Estimates:
        return Estimates(*map(Fixed, self.prices), Fixed(1.0), Fixed(1e-9), Fixed(1e-9))

    def assumed_inside(self, shape: tuple[int, int], nbytes: int) -> Estimates:
        return self.assumed_costs(shape, nbytes)


class Helpful(Even):
    """One that seems a thousand times as fast."""

    prices = 1e-3, 1e-6


def made(kind: type[Even], device: str = ALL, *, always: bool = True) -> Even:
    backend = kind()
    backend.configure({"threads": 1, "share_always": always})
    backend.use_device(device)
    return backend


@pytest.fixture(scope="module")
def expected() -> list[F32]:
    return logits_of(*FORM, None)


def session_of(backend: StandinBackend) -> Session:
    assert backend._session is not None
    return backend._session


def tally_of(backend: StandinBackend) -> Tally:
    (tally,) = (each for each in backend._tallies if each.phase is Phase.DECODE)
    return tally


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("spinning_s", [0.0, 1e-3])
def test_the_device_computes_half_of_a_layer_and_every_bit_is_the_processors(
    threads: int, spinning_s: float, expected: list[F32], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether whoever passes commands on sleeps between them or not."""
    monkeypatch.setattr(listener, "SPINNING_S", spinning_s)
    monkeypatch.setattr("edgerun.offload.sharing.in_program.control.CHECK_EVERY", 8)
    backend, seen = made(Even), []
    backend.configure({"threads": threads, "share_always": True})

    def look(backend: StandinBackend, token: int) -> None:
        if token == TOKENS - 1:
            seen.append((tally_of(backend), session_of(backend).resets))

    np.testing.assert_array_equal(logits_of(*FORM, backend, look), expected)
    ((tally, resets),) = seen
    layers = 2 * (TOKENS - 1)  # the first token is the prompt's
    assert (tally.layers, tally.rows, tally.with_device, resets) == (layers, layers, layers, 0)
    assert tally.cached + tally.here == TOP_K * layers
    assert 0 < tally.cached <= 2 * layers and tally.uploaded == tally.cut == 0
    assert tally.checked == pytest.approx(layers / 8, abs=2)
    assert 0 < tally.certified_s <= tally.seconds and tally.early <= layers // 2
    assert tally.planned_s == pytest.approx(layers * 2e-3, rel=0.01)
    assert tally.bound_s == pytest.approx(layers * 1.5e-3, rel=0.01)
    assert tally.native_s > 0 and tally.around_s > 0


def test_experts_come_to_a_device_that_has_room_for_some_of_them(expected: list[F32]) -> None:
    seen = []

    def look(backend: StandinBackend, token: int) -> None:
        session = session_of(backend)
        for (layer, expert), slot in session.slots.items():
            shown = session.control.table(layer, 8)[expert]
            assert shown in (0, slot + 1)
            assert shown or (layer, expert) not in session.arrived or session.due_s
        for layer in range(2):
            table = session.control.table(layer, 8)
            there = {expert for number, expert in session.slots if number == layer}
            assert {*np.flatnonzero(table).tolist()} <= there
        seen.append(session.device.uploaded_bytes)
        time.sleep(2e-3)  # for the link

    np.testing.assert_array_equal(logits_of(*FORM, made(Helpful, SOME), look), expected)
    assert seen[-1] > seen[2] > 0


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

    np.testing.assert_array_equal(logits_of(*form, made(Helpful), event), expected)
    (end,) = ends
    return end


def kill(session: Session) -> None:
    device = session.device
    assert isinstance(device, StandinDevice) and device._process is not None
    device._process.kill()
    device._process.wait()


def test_a_device_that_ends_is_started_again(expected: list[F32]) -> None:
    assert struck(expected, 10, kill) == (1, "")


def test_what_has_a_state_goes_on_from_there() -> None:
    """A run that was computed twice would move it on twice."""
    form = "granitemoehybrid-experts", "int4"
    assert struck(logits_of(*form, None), 10, kill, form) == (1, "")


def test_a_device_that_is_late_is_not_waited_for(
    expected: list[F32], monkeypatch: pytest.MonkeyPatch
) -> None:
    send, late = StandinDevice.send, threading.Event()

    def slow(self: StandinDevice, *given: Any) -> None:
        if late.is_set():
            late.clear()
            time.sleep(0.5)
        send(self, *given)

    def strike(session: Session) -> None:
        session.patience_s = 0.05
        late.set()

    monkeypatch.setattr(StandinDevice, "send", slow)
    assert struck(expected, 10, strike) == (1, "")
    assert not late.is_set()


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
    with running(*FORM, made(Helpful)) as (backend, programs, store, _):
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
    with running(*FORM, made(Helpful)) as (backend, programs, store, _):

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


@pytest.mark.parametrize("is_faster", [False, True])
def test_replies_are_shared_as_long_as_that_is_faster(
    is_faster: bool, expected: list[F32], monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[bool] = []
    listen, observe = Session.listen, Trials.observe

    def noted(self: Session, *, is_shared: bool) -> None:
        opened.append(is_shared)
        listen(self, is_shared=is_shared)

    def seem(self: Trials, rows: int, seconds: float, places: int, *, is_other: bool) -> None:
        seconds = 1e-3 if is_other == is_faster else 2e-3
        observe(self, rows, seconds, places, is_other=is_other)

    monkeypatch.setattr(Session, "listen", noted)
    monkeypatch.setattr(Trials, "observe", seem)
    monkeypatch.setattr(StandinBackend, "supports", StandinBackend.can_share)
    backend = made(Helpful, always=False)
    np.testing.assert_array_equal(logits_of(*FORM, backend), expected)
    assert {*opened[:16]} == {True, False} and {*opened[24:]} == {is_faster}


def test_a_device_that_is_required_is_missed() -> None:
    with running(*FORM, made(Helpful)) as (backend, programs, store, _):
        sequence = store.open()
        store.reserve(sequence, 2)
        programs.run(Batch.of([7], 0, sequence), store)
        program = next(each for shape, each in programs._compiled if shape.phase is Phase.DECODE)
        shared = program._program
        assert isinstance(shared, SharedProgram)
        session_of(backend).failure, shared._is_required = "it is gone", True
        with pytest.raises(Exception, match="nothing may go on in its place: it is gone"):
            programs.run(Batch.of([7], 1, sequence), store)


def test_nothing_is_learned_of_a_run_that_went_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its times are those of waiting."""
    backend, send = made(Even), StandinDevice.send

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


def test_values_that_are_looked_at_come_from_segments(
    expected: list[F32], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("edgerun.plan.programs._observes", lambda: (True, False))
    backend, phases = made(Helpful), []

    def look(backend: StandinBackend, token: int) -> None:
        if token == 5:
            phases.extend(tally.phase for tally in backend._tallies if tally.with_device)
            assert backend._inside is None

    np.testing.assert_array_equal(logits_of(*FORM, backend, look, tokens=8), expected[:8])
    assert Phase.DECODE in phases


def test_costs_inside_a_program_are_of_their_own() -> None:
    estimates = Estimates(Estimate(1.0), Estimate(2.0), Estimate(3.0))
    inside = estimates.inside()
    assert inside.cpu.of_one() == 1.0 and inside.around.of_one() < estimates.around.of_one()
    with running(*FORM, standin(ALL)) as (backend, *_):
        costs = backend._inside[0]
        assert costs is not backend._estimates and costs.upload is backend._estimates.upload
        assert costs.floors.upload is backend._estimates.floors.upload
