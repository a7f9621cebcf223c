"""Layers shared with another process: the same bits as the processor, whatever happens to it."""

from __future__ import annotations

import itertools
import logging
import os
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from edgerun.backends import CompileOptions, make_backend
from edgerun.backends.base import Backend, Executable, Phase, Shape
from edgerun.backends.cpu.experts.layout import SlotLayout
from edgerun.errors import BackendError
from edgerun.graph.ir import Graph
from edgerun.graph.shapes import value_shapes
from edgerun.offload.cache import Step
from edgerun.offload.estimates import START_S, Estimate
from edgerun.offload.places import Places
from edgerun.offload.sharing.executable import SharedLayer
from edgerun.offload.sharing.session import Session
from edgerun.offload.standin import StandinBackend
from edgerun.offload.standin.link import Link
from edgerun.state import Batch, same_attention
from tests.support.sharing import (
    F32,
    PROMPT,
    TOKENS,
    Running,
    attract,
    logits_of,
    nothing,
    running,
    session_of,
    standin,
)

Event = Callable[[StandinBackend, int], None]


def tokens(name: str, weights: str, device: str | None, event: Event = nothing) -> list[F32]:
    """The logits of a prompt and of 64 tokens after it."""
    return logits_of(name, weights, None if device is None else standin(device), event)


def model(
    name: str, weights: str, device: str | None, rows: int = 24
) -> AbstractContextManager[Running]:
    return running(name, weights, None if device is None else standin(device), rows)


@pytest.fixture(scope="module")
def expected() -> dict[tuple[str, str], list[F32]]:
    forms = [("olmoe", "int4"), ("mixtral", "ternary"), ("qwen3_moe", "fp32"), ("gpt_oss", "int4")]
    forms += [("qwen2_moe", "int4"), ("olmoe", "int4_asym")]
    return {form: tokens(*form, None) for form in forms}


SOME = "memory=40K,link=100M"  # room for a few of OLMoE's small experts


@pytest.mark.parametrize("is_busy", [False, True])
@pytest.mark.parametrize(
    ("form", "device"),
    [
        (("olmoe", "int4"), "memory=8M,link=1G"),
        (("olmoe", "int4_asym"), SOME),
        (("mixtral", "ternary"), "memory=64K,link=20M,latency=1ms"),
        (("qwen3_moe", "fp32"), "memory=8M,link=4G,latency=0us"),
        (("gpt_oss", "int4"), "memory=60K,link=100M"),  # with biases
        (("qwen2_moe", "int4"), "memory=8M"),  # with an expert that all tokens go through
    ],
)
def test_tokens_are_those_of_the_processor_bit_for_bit(
    form: tuple[str, str],
    device: str,
    is_busy: bool,
    expected: dict[tuple[str, str], list[F32]],
) -> None:
    """With costs as they are, by which replies are the processor's, and with others."""
    seen = []

    def look(backend: StandinBackend, token: int) -> None:
        session = session_of(backend)
        if is_busy:
            attract(backend)
        assert len(session.slots) <= session.device.sizes.slots
        assert len(set(session.slots.values())) == len(session.slots)
        assert session.arrived <= session.slots.keys()
        if token == TOKENS - 1:
            seen.append(backend.report())
            assert not session.failure and session.resets == 0
            assert backend._estimates is not None and backend._inside is not None
            for estimates in (backend._estimates, backend._inside)[: 1 + is_busy]:
                starts = estimates.starts
                assert all(START_S != each > 0 for each in starts[:2])  # they were seen
            for tally in backend._tallies:
                assert tally.early <= tally.layers // 2
                assert tally.certified_s <= tally.seconds
            decode = next(each for each in backend._tallies if each.phase is Phase.DECODE)
            assert decode.with_device > 0 or not is_busy

    logits = tokens(*form, device, look)
    np.testing.assert_array_equal(logits, expected[form])
    (report,) = seen
    assert report is not None and "stand-in for a GPU" in report.title
    assert {row["phase"] for row in report.rows} == {"prefill", "decode"}
    assert any(row["there"] != "0%" for row in report.rows)


def test_a_device_takes_no_more_memory_than_all_experts_need() -> None:
    with model("olmoe", "int4", "memory=8M") as running:
        experts = [layer.experts for layer in running.backend._layers.values()]
        assert len(experts) > 1
        assert session_of(running.backend).device.sizes.slots == sum(experts)


def fault(at: dict[int, Callable[[Session], object]]) -> Event:
    def strike(backend: StandinBackend, token: int) -> None:
        attract(backend)
        if token in at:
            at[token](session_of(backend))

    return strike


def kill(session: Session) -> None:
    if session.device._process is not None:
        session.device._process.kill()
        session.device._process.wait()


def garble(session: Session) -> None:
    """Other weights than were uploaded."""
    session.device._memory[: session.device.sizes.slots * session.device.sizes.slot_bytes] ^= 0x55


def confuse(session: Session) -> None:
    """A command that the process cannot obey; its answer comes before that of the layer."""
    session.device.send(0, 0, [session.device.sizes.slots + 1])


@pytest.mark.parametrize("what", [kill, garble, confuse])
def test_a_fault_is_answered_by_a_new_process(
    what: Callable[[Session], object],
    expected: dict[tuple[str, str], list[F32]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for room in ("executable", "in_program.control"):
        monkeypatch.setattr(f"edgerun.offload.sharing.{room}.CHECK_EVERY", 1)
    form, ends = ("olmoe", "int4"), []

    def strike(backend: StandinBackend, token: int) -> None:
        fault({10: what})(backend, token)
        if token == TOKENS - 1:
            session = session_of(backend)
            ends.append((session.resets, session.failure, len(session.arrived) > 0))

    np.testing.assert_array_equal(tokens(*form, "memory=8M", strike), expected[form])
    assert ends == [(1, "", True)]


def test_after_the_second_fault_the_processor_goes_on(
    expected: dict[tuple[str, str], list[F32]], caplog: pytest.LogCaptureFixture
) -> None:
    form, ends = ("olmoe", "int4"), []

    def strike(backend: StandinBackend, token: int) -> None:
        fault({10: kill, 20: kill})(backend, token)
        if token == TOKENS - 1:
            ends.append(backend.report())

    with caplog.at_level(logging.WARNING):
        np.testing.assert_array_equal(tokens(*form, "memory=8M", strike), expected[form])
    assert [record.getMessage() for record in caplog.records] == [
        "the stand-in failed and starting it again did not help, so the CPU takes over: its "
        "process ended with code -9"
    ]
    assert "the stand-in is not used any more: its process ended" in ends[0].notes[-1]


def test_a_link_that_stalls_is_not_waited_for(
    expected: dict[tuple[str, str], list[F32]], monkeypatch: pytest.MonkeyPatch
) -> None:
    form, stall, let_go = ("olmoe", "int4"), threading.Event(), threading.Event()
    pace = Link._pace

    def stuck(link: Link, due: float) -> None:
        if stall.is_set():
            let_go.wait(10)
        pace(link, due)

    monkeypatch.setattr(Link, "_pace", stuck)
    monkeypatch.setattr("edgerun.offload.standin.link.CLOSING_S", 0.05)
    monkeypatch.setattr(StandinBackend, "joins", lambda self, shape: False)  # waits for uploads
    ends = []

    def strike(backend: StandinBackend, token: int) -> None:
        session = session_of(backend)
        if token == 5:
            while session.due_s:
                time.sleep(0.01)
            stall.set()
            session.patience_s = 0.3
            # Nothing is there any more, and uploads seem to cost nothing: the next layer needs one.
            session.arrived.clear()
            attract(backend)
            assert backend._estimates is not None
            backend._estimates.upload.fixed_s = 1e-9
        if token == 7:
            ends.append(session.failure)
            let_go.set()

    np.testing.assert_array_equal(tokens(*form, SOME, strike), expected[form])
    assert ends == ["it did not answer within 0.3 s"]


def test_an_upload_that_nobody_waits_for_has_a_deadline(
    expected: dict[tuple[str, str], list[F32]],
) -> None:
    form, ends = ("olmoe", "int4"), []

    def strike(backend: StandinBackend, token: int) -> None:
        session = session_of(backend)
        if token == 5:
            while session.due_s:
                time.sleep(0.01)
            session.due_s = 1e-9
        if token == TOKENS - 1:
            ends.append((session.resets, session.failure))

    np.testing.assert_array_equal(tokens(*form, SOME, strike), expected[form])
    assert ends == [(1, "")]


def test_a_stand_in_that_is_required_is_missed() -> None:
    with model("olmoe", "int4", "memory=8M") as (backend, _, store, plan):
        segment = next(
            part for part in plan.segments[Shape.of(1).phase] if part.backend == "standin"
        )
        options = CompileOptions(store.states, required=True)
        program = backend.compile(segment.graph, Shape.of(1), options)
        session = session_of(backend)
        session.failure = "it is gone"
        widths = value_shapes(segment.graph)
        values = {
            name: np.ones((1, widths[name].width), np.float32) for name in segment.graph.inputs
        }
        with pytest.raises(BackendError, match="nothing may go on in its place: it is gone"):
            program(Batch.of([0], 0, 0), store, values)


def test_a_slot_is_not_enough_memory_for_an_expert() -> None:
    with pytest.raises(BackendError, match="an expert takes .* give it memory=4K or more"):
        tokens("olmoe", "int4", "memory=1K")


def test_layers_unlike_the_first_are_the_processors() -> None:
    """Its process has the programs of the first."""
    with model("olmoe", "int4", "memory=8M", 1) as (backend, _, store, plan):
        session = session_of(backend)
        like, attributes = session.layout, dict(session._attributes)
        assert session.takes(like, {**attributes, "top_k": 7})
        assert not session.takes(like, {**attributes, "activation": "relu2"})
        assert not session.takes(SlotLayout(like.matrices[:2]), attributes)
        part = next(part for part in plan.segments[Shape.of(1).phase] if part.backend == "standin")
        (node,) = part.graph.nodes
        other = node.replace(name="other", attrs={**node.attrs, "activation": "relu2"})
        graph = replace(part.graph, nodes=[other])
        companion = make_backend("cpu", given={"threads": 1})
        options = CompileOptions(store.states, fallback=partial(compiled_by, companion))
        assert not isinstance(backend.compile(graph, Shape.of(1), options), SharedLayer)
        with pytest.raises(BackendError, match="slots for layers like the first one only"):
            backend.compile(graph, Shape.of(1), CompileOptions(store.states))
        companion.close()


def compiled_by(backend: Backend, graph: Graph, shape: Shape) -> Executable:
    return backend.compile(graph, shape, CompileOptions(same_attention(1, 1, 16, "fp32")))


def test_only_layers_of_experts_are_shared() -> None:
    with model("olmoe", "int4", "memory=8M", 1) as (_, _, _, plan):
        for part in next(iter(plan.segments.values())):
            ops = {node.op for node in part.graph.nodes}
            assert (ops == {"experts"}) == (part.backend == "standin")


def test_a_call_that_is_cut_off_leaves_nothing_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    """As by Ctrl-C: its answers are still to come, and must not be taken for others."""
    answer, calls = Session.answer, itertools.count()

    def interrupted(session: Session, expected_s: float = 0.0) -> object:
        if next(calls) == 0:
            raise KeyboardInterrupt
        return answer(session, expected_s)

    logits = []
    for device in (None, "memory=8M"):
        with model("olmoe", "int4", device) as (backend, programs, store, _):
            sequence = store.open()
            store.reserve(sequence, 40)
            for start in range(0, 40, 20):
                batch = Batch.of(np.arange(20, dtype=np.int32) + start, start, sequence)
                if device and start:
                    attract(backend)
                    monkeypatch.setattr(Session, "answer", interrupted)
                    with pytest.raises(KeyboardInterrupt):
                        programs.run(batch, store)
                logits.append(programs.run(batch, store)["logits"].copy())
                store.commit(sequence, start + 20)
            if device:
                assert session_of(backend).resets == 0 and next(calls) > 1
    np.testing.assert_array_equal(logits[2:], logits[:2])


def test_a_forked_child_has_a_stand_in_of_its_own(
    expected: dict[tuple[str, str], list[F32]],
) -> None:
    """And leaves its parent's alone, even when it ends."""
    with model("olmoe", "int4", "memory=8M") as (backend, programs, store, _):

        def logits() -> F32:
            sequence = store.open()
            store.reserve(sequence, len(PROMPT))
            batch = Batch.of(np.asarray(PROMPT, np.int32), 0, sequence, logits="last")
            values = programs.run(batch, store)["logits"].copy()
            store.close(sequence)
            return values

        first, process = logits(), session_of(backend).device._process
        read, write = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                is_same = np.array_equal(logits(), first)
                own = session_of(backend)
                is_own = own.device._process.pid != process.pid and not own.failure
                own.close()
                os.write(write, bytes([is_same, is_own]))
            finally:
                os._exit(0)
        os.close(write)
        assert os.read(read, 2) == b"\1\1"
        os.waitpid(child, 0)
        os.close(read)
        assert process.poll() is None
        np.testing.assert_array_equal(logits(), first)
        assert session_of(backend).resets == 0


def test_a_layer_that_the_device_would_make_slower_is_the_processors_but_now_and_then() -> None:
    """So that costs which seemed too high are seen again."""
    with model("olmoe", "int4", "memory=8M") as (backend, _, store, plan):
        part = next(part for part in plan.segments[Shape.of(1).phase] if part.backend == "standin")
        program = backend.compile(part.graph, Shape.of(1), CompileOptions(store.states))
        program._cutter = None  # experts stay whole
        estimates, session = backend._estimates, session_of(backend)
        places = Places.of(np.float32([[0.5, 0.4, 0.1, 0, 0, 0, 0, 0]]), 3)
        entries = [(program._layer.number, expert) for expert in range(8)]
        session.admit(Step(entries[0][0], tuple(range(8)), (1.0,) * 8), range(8))
        session.arrived.update(entries)
        estimates.cpu, estimates.device = Estimate(1e-3), Estimate(1e-3)
        for command_s, calls, expected_s in (
            (1e-4, 1, 2e-3 + START_S),
            (1.0, 1, 3e-3),
            (1.0, 31, 3e-3),
            (1.0, 32, 1.0),
        ):
            estimates.command, program._calls = Estimate(command_s), calls
            planned = program._plan(places)
            assert planned.division.planned_s == pytest.approx(expected_s, rel=2e-3)
            assert bool(len(planned.there)) == (expected_s != 3e-3)
            assert planned.division.bound_s <= 2e-3


def test_nothing_is_uploaded_while_something_is() -> None:
    """Its slot would be free for another expert before its weights are there."""
    with model("olmoe", "int4", SOME) as (backend, _, store, plan):
        part = next(part for part in plan.segments[Shape.of(1).phase] if part.backend == "standin")
        program = backend.compile(part.graph, Shape.of(1), CompileOptions(store.states))
        session = session_of(backend)
        backend._estimates.upload.fixed_s = 1e-9
        places = Places.of(np.float32([[0, 0, 0, 0, 0, 1, 1, 1]]), 3)
        assert not session.arrived.intersection((program._layer.number, e) for e in (5, 6, 7))
        for due_s in (time.monotonic() + 100, 0.0):
            session.due_s = due_s
            assert (len(program._plan(places).uploaded) > 0) == (due_s == 0)
