"""Layers shared with a stand-in while an upload is under way: close, fork, Ctrl-C; odd layers."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import EntryPoint
from pathlib import Path

import numpy as np
import pytest

import edgerun
from edgerun import env
from edgerun.backends import CompileOptions, make_backend
from edgerun.backends.base import Shape
from edgerun.offload.places import Places
from edgerun.offload.sharing.session import Session
from edgerun.offload.standin.link import Link
from edgerun.state import Batch, SequenceStore, same_attention
from tests.backends.test_experts import K, layer, random_routes
from tests.support.altered import AlteredBundle
from tests.support.bundles import bundle_of
from tests.support.expert_faults.files import ROUTERS, outcome
from tests.support.sharing import F32, PROMPT, Running, running, standin

FORM = "olmoe", "int4"
SOME = "memory=40K,link=100M"  # room for a few of the small experts
PATIENCE_S = 20.0


class Gate:
    """Stops the link in the middle of an upload, and lets it go on."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.is_stuck, self._open = threading.Event(), threading.Event()
        self._open.set()
        pace = Link._pace

        def wait(link: Link, due: float) -> None:
            if not self._open.is_set():
                self.is_stuck.set()
                self._open.wait(PATIENCE_S)
            pace(link, due)

        patch.setattr(Link, "_pace", wait)

    @contextmanager
    def stuck(self, model: Running) -> Iterator[None]:
        """An upload is under way and does not end; from here on it does."""
        session = session_of(model)
        while session.is_uploading():
            time.sleep(0.001)
        self._open.clear()
        try:
            while not session.is_uploading():  # an expert that somebody may want later
                logits(model)
            assert self.is_stuck.wait(PATIENCE_S)
            yield
        finally:
            self._open.set()


def session_of(model: Running) -> Session:
    session = model.backend._session
    assert session is not None
    return session


def logits(model: Running) -> F32:
    """Of a prompt, which is forgotten."""
    sequence, store = model.store.open(), model.store
    try:
        store.reserve(sequence, len(PROMPT))
        batch = Batch.of(np.asarray(PROMPT, np.int32), 0, sequence, logits="last")
        return model.programs.run(batch, store)["logits"].copy()
    finally:
        store.close(sequence)


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Gate:
    monkeypatch.setattr("edgerun.offload.standin.link.CLOSING_S", 0.05)
    return Gate(monkeypatch)


def test_closing_does_not_wait_for_an_upload_nor_believe_it(gate: Gate) -> None:
    with running(*FORM, standin(SOME)) as model:
        logits(model)
        session, link = session_of(model), session_of(model).device._link
        with gate.stuck(model):
            arrived, process = set(session.arrived), session.device._process
            begin = time.monotonic()
            session.close()
            assert time.monotonic() - begin < PATIENCE_S / 2
            assert process.poll() is not None
        link._thread.join(PATIENCE_S)
        assert not link._thread.is_alive()
        assert session.arrived == arrived  # it was cut off
        session.close()


def test_after_ctrl_c_in_an_upload_the_next_call_begins_anew(
    gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    with running(*FORM, standin(SOME)) as model:
        first = logits(model)
        session = session_of(model)
        with gate.stuck(model):
            process = session.device._process
            with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
                patch.setattr(Session, "admit", interrupted)
                logits(model)
            assert process.poll() is not None
        np.testing.assert_array_equal(logits(model), first)
        assert session.device._process is not process
        assert (session.resets, session.failure) == (0, "")


def test_a_child_that_is_forked_in_an_upload_has_a_stand_in_of_its_own(gate: Gate) -> None:
    with running(*FORM, standin(SOME)) as model:
        first, process = logits(model), session_of(model).device._process
        with gate.stuck(model):
            read, write = os.pipe()
            child = os.fork()
            if child == 0:
                told = b"failed"
                try:
                    gate._open.set()
                    is_same = np.array_equal(logits(model), first)
                    own = session_of(model)
                    is_own = own.device._process.pid != process.pid and not own.failure
                    own.close()
                    told = bytes([is_same, is_own])
                finally:
                    os.write(write, told)
                    os._exit(0)
            os.close(write)
            assert os.read(read, 10) == b"\1\1"
            os.waitpid(child, 0)
            os.close(read)
        np.testing.assert_array_equal(logits(model), first)
        assert session_of(model).device._process is process and process.poll() is None


@pytest.mark.parametrize(("experts", "top_k"), [(1, 1), (5, 5)])
def test_a_layer_may_have_one_expert_or_need_all(experts: int, top_k: int) -> None:
    """Of a width that blocks do not divide; one row goes nowhere."""
    graph, states = layer("int8_block", "int4", experts, top_k), same_attention(1, 1, 16, "fp32")
    rng, outputs = np.random.default_rng(2), []
    x = rng.standard_normal((7, K)).astype(np.float32)
    routes = random_routes(rng, 7, experts, top_k)
    routes[0], routes[1] = 0, 0.25
    for backend in (standin("memory=1M"), make_backend("cpu", given={"threads": 1})):
        program = backend.compile(graph, Shape.of(7), CompileOptions(states))
        batch = Batch.of([0] * 7, 0, 0, logits="none")
        outputs += [
            program(batch, SequenceStore(states, 1), {"x": x, "routes": routes})["out"].copy()
            for _ in range(3)
        ]
        program.close()
        backend.close()
    for each in outputs[1:]:
        np.testing.assert_array_equal(each, outputs[0])


def test_weights_that_are_no_numbers_score_nothing_and_infinite_ones_the_most(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """So that the policy can compare experts whatever a router says."""
    graph, states = layer("int8_block", "int4", 5, 4), same_attention(1, 1, 16, "fp32")
    backend, steps = standin("memory=1M"), []
    program = backend.compile(graph, Shape.of(2), CompileOptions(states))
    with monkeypatch.context() as patch:
        patch.setattr(Session, "admit", lambda session, step, experts: steps.append(step))
        rows = [[np.nan, np.inf, -np.inf, 0, -0.5], [np.nan, 0, 0, 0, 0.25]]
        for count in (2, 1):
            program._plan(Places.of(np.float32(rows[:count]), 4))
    program.close()
    backend.close()
    largest = float(np.finfo(np.float32).max)
    assert [(step.experts, step.scores) for step in steps] == [
        ((0, 1, 2, 4), (0.0, largest, largest, 0.5))
    ] * 2


@pytest.mark.parametrize("router", ["equal scores", "logits overflow"])
def test_odd_routers_say_the_same_with_a_device(
    router: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where every node is checked as it runs, which infinite ones do not bear."""
    monkeypatch.setenv("EDGERUN_VALIDATE", str(int(router == "equal scores")))
    env.settings.cache_clear()
    bundle = AlteredBundle(bundle_of(FORM[0], weights=FORM[1]), tmp_path / "bundle")
    for tensor in list(bundle.model.graph.initializer):
        if tensor.name.endswith("gate.weight.transposed"):
            bundle.put(tensor.name, ROUTERS[router](bundle.array(tensor.name)))
    bundle.save()
    point = EntryPoint("standin", "edgerun.offload.standin:make", "edgerun.backends")
    monkeypatch.setattr("edgerun.backends.registry._added_backends", lambda: [point])
    try:
        told = []
        for backend, asked in (("cpu", {}), ("standin", {"device": SOME, "share": "always"})):
            with edgerun.load(bundle.folder, threads=1, backend=backend, **asked) as llm:  # type: ignore[arg-type]
                told.append(outcome(llm))
                assert backend == "cpu" or "stand-in" in llm.reports()[0].title
    finally:
        monkeypatch.undo()
        env.settings.cache_clear()
    assert told[0] == told[1]
