"""Models placed on OpenVINO's CPU, and devices that fail."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from edgerun.backends import CompileOptions
from edgerun.backends.base import Backend, buckets
from edgerun.backends.openvino import executable, session
from edgerun.backends.openvino.devices import missing_package
from edgerun.backends.openvino.network import Request
from edgerun.backends.openvino.session import Session
from edgerun.model.bundle import open_bundle
from edgerun.plan.places import Places, placed_candidates
from edgerun.plan.programs import Programs, compile_plan
from edgerun.plan.routes import plan_for
from edgerun.plan.states import states_of
from edgerun.state import Batch, SequenceStore, State
from tests.support.machines import Pretend, pretender

Arrays = list[NDArray[np.float32]]


@pytest.fixture(autouse=True)
def cache_dir(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Where networks are kept: nothing is there before a test, and nothing stays."""
    monkeypatch.setattr(executable, "settings", lambda: SimpleNamespace(cache_dir=tmp_path))
    return tmp_path


@dataclass
class Placed:
    """A model whose parts are at some places."""

    programs: Programs
    backends: tuple[Backend, ...]
    states: tuple[State, ...]
    context: int

    def store(self, sequences: int = 1) -> SequenceStore:
        return SequenceStore(self.states, self.context, sequences)

    def run(self, store: SequenceStore, batch: Batch) -> NDArray[np.float32]:
        """One call, whose pages are reserved and committed."""
        ends = {
            int(slot): int(position) + 1
            for slot, position in zip(batch.sequences, batch.positions, strict=True)
        }
        for slot, end in ends.items():
            store.reserve(slot, end)
        logits = self.programs.run(batch, store)["logits"].copy()
        for slot, end in ends.items():
            store.commit(slot, end)
        return logits

    def calls(self) -> int:
        """Of the device's networks."""
        reports = [backend.report() for backend in self.backends]
        return sum(int(row["calls"]) for report in reports if report for row in report.rows)

    def session(self) -> Session:
        (session,) = [
            each for each in (getattr(b, "_session", None) for b in self.backends) if each
        ]
        assert isinstance(session, Session)
        return session


@contextmanager
def placed(
    folder: Path,
    place: str,
    *,
    kv_cache: str = "fp32",
    context: int = 640,
    rows: int = 256,
    required: str | None = None,
) -> Iterator[Placed]:
    """Compiles a bundle for places, with calls of up to so many rows."""
    bundle = open_bundle(folder)
    states = states_of(bundle.graph, bundle.config, kv_cache)
    candidates = placed_candidates(Places.read(place), {"threads": 1})
    backends = candidates.every()
    try:
        plan = plan_for(bundle.graph, candidates)
        programs = compile_plan(plan, backends, buckets(rows), CompileOptions(states), required)
        yield Placed(programs, backends, states, context)
        programs.close()
    finally:
        for backend in backends:
            backend.close()


@pytest.fixture
def pretend(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Pretend]:
    """Makes this machine look like another one, whose OpenVINO is looked at anew."""
    missing_package.cache_clear()
    yield pretender(monkeypatch, tmp_path)
    missing_package.cache_clear()


class Altered:
    """A compiled network whose outputs are altered."""

    def __init__(self, request: Request, alter: Callable[[Arrays, Arrays], Arrays]) -> None:
        self.export, self.cancel, self.has_ended = request.export, request.cancel, request.has_ended
        self._request, self._alter = request, alter
        self._inputs: Arrays = []

    def start(self, arrays: Arrays) -> None:
        self._inputs = arrays
        self._request.start(arrays)

    def wait(self) -> Arrays:
        return self._alter(self._inputs, self._request.wait())


class Fault:
    """Makes a device fail in one of its calls to come.

    Attributes:
        networks: all that were compiled.
        immortal: requests that are kept for ever; here until the test ends.
    """

    def __init__(self) -> None:
        self.kind, self.countdown = "", 0
        self.immortal: list[object] = []
        self.networks: list[weakref.ref[Altered]] = []

    def set(self, kind: str, calls: int) -> None:
        """Fails so after some calls that succeed."""
        self.kind, self.countdown = kind, calls

    def apply(self, outputs: list[NDArray[np.float32]]) -> list[NDArray[np.float32]]:
        if not self.kind:
            return outputs
        self.countdown -= 1
        if self.countdown >= 0:
            return outputs
        if self.kind == "nan":
            return [*outputs[:-1], np.full_like(outputs[-1], np.nan)]
        raise {
            "lost": RuntimeError("Exception from src/x.cpp:1:\nZE_RESULT_ERROR_DEVICE_LOST\n"),
            "memory": MemoryError(),
            "hang": TimeoutError("it did not answer within 60 s"),
        }[self.kind]


@pytest.fixture
def fault(monkeypatch: pytest.MonkeyPatch) -> Fault:
    """Stands between edgerun and all networks that are compiled."""
    fault, compile_ = Fault(), Session.compile

    def compile_faulty(opened: Session, model: Any, config: Any) -> Altered:
        request = compile_(opened, model, config)
        altered = Altered(request, lambda arrays, out: fault.apply(out))
        fault.networks.append(weakref.ref(altered))
        return altered

    monkeypatch.setattr(Session, "compile", compile_faulty)
    monkeypatch.setattr(session, "keep_for_ever", fault.immortal.append)
    return fault
