"""A failed overlay is reset once; after that the CPU takes over, with the same tokens.

Every case breaks something at a random place of a short generation: one command or all from there
on, in the device, on its bus, or in the process that serves it (promise 17: 200 faults).
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np
import pytest

from edgerun.backends import CompileOptions, Shape, make_backend
from edgerun.backends.base import buckets
from edgerun.errors import BackendError
from edgerun.graph.ir import Graph, Node
from edgerun.model.bundle import Bundle, open_bundle
from edgerun.plan.planner import make_plan
from edgerun.plan.programs import compile_plan
from edgerun.plan.states import states_of
from edgerun.state import Batch, SequenceStore, same_attention
from edgerun_hw.backend import FpgaBackend
from edgerun_hw.overlay import register_map as regs
from edgerun_hw.overlay.driver import Tlmm
from edgerun_hw.overlay.errors import WorkerError
from edgerun_hw.overlay.geometry import PRESETS
from edgerun_hw.overlay.port import Overlay
from edgerun_hw.simulate.fake import FakeDevice, Faults
from tests.hw.support.overlays import replace_fake
from tests.support.bundles import bundle_of

PROMPT = [5, 9, 17, 23, 4]
TOKENS = 3
CASES = 200
TAKES_OVER = "the CPU takes over"


class From:
    """Commands from a number on."""

    def __init__(self, first: int) -> None:
        self.first = first

    def __contains__(self, number: object) -> bool:
        return isinstance(number, int) and number >= self.first


class OneField:
    """An error bit for every command from a number on."""

    def __init__(self, first: int, field: regs.Field) -> None:
        self.first, self.field = first, field

    def get(self, number: int) -> regs.Field | None:
        return self.field if number >= self.first else None


class BrokenPort(FakeDevice):
    """A device whose registers cannot be reached at some accesses."""

    def __init__(self, broken: Callable[[int], bool]) -> None:
        super().__init__(PRESETS["tiny"])
        self.broken, self.accesses = broken, 0

    def read(self, offset: int) -> int:
        self.accesses += 1
        if self.broken(self.accesses):
            raise OSError(5, "input/output error")
        return super().read(offset)


class BrokenWorker:
    """An overlay in a process that does not answer some calls."""

    def __init__(self, inner: Overlay, broken: Callable[[int], bool]) -> None:
        self._inner, self._broken, self._calls = inner, broken, 0

    def __getattr__(self, name: str) -> Any:
        self._calls += name in ("submit", "wait", "counters", "reset", "allocate")
        if self._broken(self._calls) and name != "close":
            raise WorkerError("the process that serves the device is gone")
        return getattr(self._inner, name)


@dataclass(frozen=True)
class Fault:
    """What breaks, where, and whether for good."""

    kind: str
    place: float
    lasting: bool

    def overlay(self, size: Sizes) -> Overlay:
        """A device that has the fault, for a generation of a known size."""
        command = int(self.place * size.commands)
        if self.kind == "bus":
            broken = self._numbers(size.first_access, size.accesses)
            return Tlmm(BrokenPort(broken))
        if self.kind == "worker":
            whole = Tlmm(FakeDevice(PRESETS["tiny"]))
            return BrokenWorker(whole, self._numbers(0, size.calls))  # type: ignore[return-value]
        return Tlmm(FakeDevice(PRESETS["tiny"], faults=self._faults(command)))

    def _numbers(self, first: int, count: int) -> Callable[[int], bool]:
        start = first + int(self.place * count)
        return (lambda n: n >= start) if self.lasting else (lambda n: n == start)

    def _faults(self, command: int) -> Faults:
        hit: Any = From(command) if self.lasting else [command]
        if self.kind in ("wedged", "silent"):
            return Faults(wedged=hit, silent=self.kind == "silent")
        if self.kind == "altered":
            return Faults(altered=hit)
        field = getattr(regs, f"ERROR_{self.kind.upper()}")
        errors: Any = OneField(command, field) if self.lasting else {command: field}
        return Faults(errors=errors)


@dataclass(frozen=True)
class Sizes:
    """What an undisturbed generation takes."""

    commands: int
    accesses: int
    first_access: int
    calls: int


KINDS = (
    "bad_length",
    "underrun",
    "overrun",
    "read_response",
    "write_response",
    "watchdog",
    "wedged",
    "silent",
    "altered",
    "bus",
    "worker",
)


@cache
def bundle() -> Bundle:
    return open_bundle(bundle_of("bitnet-offline"))


def generate(backend: Any) -> tuple[list[int], np.ndarray]:
    """Greedy tokens and the logits they were chosen by."""
    graph, config = bundle().graph, bundle().config
    spec = states_of(graph, config, "fp32")
    backends = [backend, *(make_backend(name) for name in getattr(backend, "companions", ()))]
    plan = make_plan(graph, backends, backend.name)
    programs = compile_plan(plan, backends, buckets(len(PROMPT)), CompileOptions(spec))
    cache_ = SequenceStore(spec, 32, 1)
    sequence = cache_.open()
    tokens, logits, ids = [], [], list(PROMPT)
    try:
        for _ in range(TOKENS):
            start = int(bool(tokens)) * (len(PROMPT) + len(tokens) - 1)
            cache_.reserve(sequence, start + len(ids))
            row = programs.run(Batch.of(ids, start, sequence), cache_)["logits"][0].copy()
            cache_.commit(sequence, start + len(ids))
            logits.append(row)
            tokens.append(int(row.argmax()))
            ids = [tokens[-1]]
    finally:
        programs.close()
        for each in backends:
            each.close()
    return tokens, np.array(logits)


def with_device(
    monkeypatch: pytest.MonkeyPatch, make: Callable[[], Overlay]
) -> tuple[list[int], np.ndarray, FpgaBackend]:
    replace_fake(monkeypatch, make)
    backend = FpgaBackend()
    backend.use_device("fake")
    session = backend._opened()
    tokens, logits = generate(backend)
    backend._session = session  # `close` let go of it
    return tokens, logits, backend


@pytest.fixture(scope="module")
def expected() -> tuple[list[int], np.ndarray]:
    return generate(make_backend("cpu"))


@pytest.fixture(scope="module")
def sizes(expected: tuple[list[int], np.ndarray]) -> Sizes:
    """Counts an undisturbed generation, whose tokens must be the CPU's."""
    device = BrokenPort(lambda number: False)
    worker = BrokenWorker(Tlmm(device), lambda number: False)
    first_access = device.accesses
    with pytest.MonkeyPatch.context() as patch:
        tokens, logits, _ = with_device(patch, lambda: worker)  # type: ignore[arg-type,return-value]
    assert tokens == expected[0]
    np.testing.assert_allclose(logits, expected[1], atol=2e-6)
    return Sizes(device._accepted, device.accesses - first_access, first_access, worker._calls)


def faults() -> list[Fault]:
    rng = np.random.default_rng(17)
    return [
        Fault(KINDS[index % len(KINDS)], float(rng.random()), bool(rng.integers(2)))
        for index in range(CASES)
    ]


GROUPS = 10
EVERY_CHANGE = 2  # groups; the others take most of a minute
SLOW = [pytest.param(group, marks=pytest.mark.slow) for group in range(EVERY_CHANGE, GROUPS)]


@pytest.mark.parametrize("group", [*range(EVERY_CHANGE), *SLOW])
def test_tokens_survive_faults(group, expected, sizes, monkeypatch, caplog):
    caplog.set_level(logging.WARNING)
    for fault in faults()[group::GROUPS]:
        caplog.clear()
        tokens, logits, backend = with_device(monkeypatch, lambda: fault.overlay(sizes))  # noqa: B023
        assert tokens == expected[0], fault
        np.testing.assert_allclose(logits, expected[1], atol=2e-6, err_msg=str(fault))
        lines = [record.message for record in caplog.records]
        taken_over = [line for line in lines if TAKES_OVER in line]
        assert len(lines) == len(taken_over) == int(bool(backend._session.failure)), fault
        if fault.kind != "worker":  # what counts calls there may hit the reset
            assert bool(taken_over) == fault.lasting, fault
            assert backend._session.resets == 1


def test_a_wrong_identity_leaves_everything_to_the_cpu(expected, monkeypatch, caplog):
    def make() -> Overlay:
        return Tlmm(FakeDevice(PRESETS["tiny"], faults=Faults(identity=0xDEADBEEF)))

    tokens, logits, backend = with_device(monkeypatch, make)
    assert tokens == expected[0]
    np.testing.assert_array_equal(logits, expected[1])
    assert "ID register" in backend._session.failure
    assert sum(TAKES_OVER in record.message for record in caplog.records) == 1
    report = backend.report()
    assert report is not None
    assert any("not used any more" in note for note in report.notes)


@pytest.mark.parametrize("field", ["reset_sticks", "gone"])
def test_a_device_that_does_not_come_back_is_given_up(field, expected, monkeypatch, caplog):
    device = FakeDevice(PRESETS["tiny"])
    tlmm = Tlmm(device)
    real = tlmm.submit

    def submit(command):
        if device._accepted == 9:
            setattr(device.faults, field, True)
            device.faults.wedged = From(9)
        return real(command)

    monkeypatch.setattr(tlmm, "submit", submit)
    tokens, _, backend = with_device(monkeypatch, lambda: tlmm)
    assert tokens == expected[0]
    assert backend._session.failure
    assert len(caplog.records) == 1


def linear_alone() -> tuple[FpgaBackend, Graph, Node]:
    """A back-end on the fake device, and a graph of a single linear layer with its node."""
    backend = FpgaBackend()
    backend.use_device("fake")
    graph = bundle().graph
    node = next(each for each in graph.nodes if each.op == "linear")
    return backend, replace(graph.with_nodes([node]), outputs=[*node.outputs]), node


def test_without_a_companion_the_failure_is_an_error(monkeypatch):
    replace_fake(
        monkeypatch, lambda: Tlmm(FakeDevice(PRESETS["tiny"], faults=Faults(wedged=From(3))))
    )
    backend, graph, node = linear_alone()
    spec = same_attention(1, 1, 16)
    executable = backend.compile(graph, Shape.of(1), CompileOptions(spec))
    x = np.ones((1, graph.constants[node.inputs[1]].shape[1]), np.float32)
    with pytest.raises(BackendError, match="no other back-end"):
        for _ in range(4):
            executable(Batch.of([1], 0, 0), SequenceStore(spec, 64), {node.inputs[0]: x})


def test_a_full_memory_without_a_companion_is_called_that_and_no_failure(monkeypatch):
    replace_fake(monkeypatch, lambda: Tlmm(FakeDevice(PRESETS["tiny"], memory_bytes=1 << 16)))
    backend, graph, node = linear_alone()
    spec = same_attention(1, 1, 16)
    executable = backend.compile(graph, Shape.of(1), CompileOptions(spec, required=True))
    x = np.ones((1, graph.constants[node.inputs[1]].shape[1]), np.float32)
    with pytest.raises(BackendError, match=r"cannot run this \(its memory is full\) and no other"):
        executable(Batch.of([1], 0, 0), SequenceStore(spec, 64), {node.inputs[0]: x})


def test_a_full_memory_leaves_the_rest_to_the_cpu(expected, monkeypatch, caplog):
    def make() -> Overlay:
        return Tlmm(FakeDevice(PRESETS["tiny"], memory_bytes=1 << 18))

    tokens, logits, _ = with_device(monkeypatch, make)
    assert tokens == expected[0]
    np.testing.assert_allclose(logits, expected[1], atol=2e-6)
    assert ["is full after" in record.message for record in caplog.records] == [True]
