"""Layers of replies that are shared inside a program: its bits, whatever becomes of the device."""

from __future__ import annotations

import time

import numpy as np
import pytest

from edgerun.backends.base import Phase
from edgerun.kernels.run import commands as words
from edgerun.offload.divider import Prices
from edgerun.offload.estimates import Estimate, Estimates
from edgerun.offload.sharing.in_program import listener
from edgerun.offload.sharing.in_program.learning import Learner
from edgerun.offload.sharing.in_program.program import SharedProgram
from edgerun.offload.sharing.session import Session
from edgerun.offload.sharing.tally import Tally
from edgerun.offload.sharing.trials import Trials
from edgerun.offload.standin import StandinBackend
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
    standin,
    standin_like,
    tally_of,
)

FORM = "olmoe", "int4"
SOME = "memory=40K,link=1G"  # room for a few of them
TOP_K = 3


@pytest.fixture(scope="module")
def expected() -> list[F32]:
    return logits_of(*FORM, None)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("spinning_s", [0.0, 1e-3])
def test_the_device_computes_half_of_a_layer_and_every_bit_is_the_processors(
    threads: int, spinning_s: float, expected: list[F32], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether whoever passes commands on sleeps between them or not."""
    monkeypatch.setattr(listener, "SPINNING_S", spinning_s)
    monkeypatch.setattr("edgerun.offload.sharing.in_program.control.CHECK_EVERY", 8)
    backend, seen = standin_like(Even), []
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


@pytest.mark.parametrize("form", [FORM, ("gpt_oss", "int4"), ("mixtral", "ternary")])
def test_a_few_rows_at_a_time_have_the_bits_of_the_processor(
    form: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of several replies, or of a draft: each expert has some of them."""
    monkeypatch.setattr("edgerun.offload.sharing.in_program.control.CHECK_EVERY", 4)
    logits: list[list[F32]] = []
    for backend in (None, standin_like(Even)):
        with running(*form, backend) as (_, programs, store, _):
            sequence, length = store.open(), 0
            store.reserve(sequence, 128)
            logits.append([])
            for rows in (16, 2, 3, 5, 7, 11, 16, 4, 2, 16, 12):
                ids = np.arange(rows, dtype=np.int32) * 7 + length
                batch = Batch.of(ids, length, sequence)
                logits[-1].append(programs.run(batch, store)["logits"].copy())
                length += rows
                store.commit(sequence, length)
    for shared, alone in zip(*logits, strict=True):
        np.testing.assert_array_equal(shared, alone)
    assert backend is not None
    (tally,) = (each for each in backend._tallies if each.phase is Phase.FEW)
    layers = len(backend._layers) * 11
    assert (tally.layers, tally.with_device) == (layers, layers)
    assert tally.rows == len(backend._layers) * 94 and tally.checked > 4
    assert tally.cached > 0 and tally.uploaded == tally.cut == 0
    assert tally.certified_s <= tally.seconds
    inside = backend._inside
    assert inside is not None and inside.floors.cpu.factor(0) > 0


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

    np.testing.assert_array_equal(logits_of(*FORM, standin_like(Helpful, SOME), look), expected)
    assert seen[-1] > seen[2] > 0


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
    backend = standin_like(Helpful, always=False)
    np.testing.assert_array_equal(logits_of(*FORM, backend), expected)
    assert {*opened[:16]} == {True, False} and {*opened[24:]} == {is_faster}


def test_a_device_that_is_required_is_missed() -> None:
    with running(*FORM, standin_like(Helpful)) as (backend, programs, store, _):
        sequence = store.open()
        store.reserve(sequence, 2)
        programs.run(Batch.of([7], 0, sequence), store)
        program = next(each for shape, each in programs._compiled if shape.phase is Phase.DECODE)
        shared = program._program
        assert isinstance(shared, SharedProgram)
        session_of(backend).failure, shared._is_required = "it is gone", True
        with pytest.raises(Exception, match="nothing may go on in its place: it is gone"):
            programs.run(Batch.of([7], 1, sequence), store)


def test_values_that_are_looked_at_come_from_segments(
    expected: list[F32], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("edgerun.plan.programs._observes", lambda: (True, False))
    backend, phases = standin_like(Helpful), []

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
        costs = backend._inside
        assert costs is not backend._estimates and costs.upload is backend._estimates.upload
        assert costs.floors.upload is backend._estimates.floors.upload


def test_of_numbers_of_rows_those_are_learned_that_were_seen_since() -> None:
    estimates = Estimates(Estimate(1e-6), Estimate(1e-6), Estimate(1.0))
    totals = np.zeros(words.TOTAL_WORDS, np.int64)
    learner = Learner([], totals, Prices(estimates), estimates, Tally(Phase.FEW), 4)
    learned = []
    for kinds in (0b1, 0b100, 0b110):
        totals[[words.LAYERS, words.WITH_DEVICE]] += 1
        totals[[words.CPU_COST_SUM, words.CPU_SUM]] += 1000, 2000
        totals[[words.DEVICE_COST_SUM, words.DEVICE_SUM]] += 1000, 500
        totals[[words.CPU_KINDS_SEEN, words.DEVICE_KINDS_SEEN]] |= kinds
        assert learner.learn() == 1 and learner.learn() == 0
        learned.append((estimates.cpu.learned(), estimates.device.learned()))
    for side, is_slower in ((0, True), (1, False)):
        first, second, third = (each[side] for each in learned)
        assert [*map(set, (first, second, third))] == [{0}, {0, 2}, {0, 1, 2}]
        assert first[0] == second[0] == third[0] and second[2] != third[2]
        assert all((factor > 1) == is_slower for factor in third.values())
