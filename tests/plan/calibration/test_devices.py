"""What is measured of devices, through the contract of back-ends, on small networks."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from edgerun.backends.base import (
    NO_VALUES,
    Backend,
    CompileOptions,
    Executable,
    Shape,
    Support,
    Values,
)
from edgerun.errors import BackendError
from edgerun.graph.ir import Graph, Node
from edgerun.machine import timing
from edgerun.machine.devices import ATTENTION, ELEMENTS
from edgerun.plan.calibration import devices as device_calibration
from edgerun.plan.calibration.devices import attention, linear, measure_devices, norms
from edgerun.state import Batch, SequenceStore

ROW_SECONDS, CALL_SECONDS = 1e-4, 2e-3


class Program(Executable):
    """Takes its time for each row, and computes nothing."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph

    def __call__(self, batch: Batch, cache: SequenceStore, values: Values = NO_VALUES) -> Values:
        assert set(values) == set(self.graph.inputs)
        assert all(len(value) == batch.rows for value in values.values())
        time.sleep(CALL_SECONDS + ROW_SECONDS * batch.rows)
        return {}

    def close(self) -> None:
        pass


class Slow(Backend):
    """A device that sleeps, and one that is broken."""

    name = "slow"

    def use_device(self, name: str) -> None:
        self.device = name

    def probe(self) -> Support:
        return Support(True)

    def supports(self, graph: Graph, node: Node, shape: Shape) -> Support:
        return Support(True)

    def cost(self, graph: Graph, node: Node, shape: Shape) -> float:
        return 0.0

    def chunks(self) -> tuple[int, ...]:
        return (1, 8)

    def measures(self) -> Mapping[str, str]:
        return {"good": "driver 7", "broken": "driver 7"}

    def compile(self, segment: Graph, shape: Shape, options: CompileOptions) -> Executable:
        if self.device == "broken":
            raise BackendError("it does not answer")
        return Program(segment)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    def make(name: str, device: str | None = None, given: Mapping[str, Any] | None = None) -> Slow:
        backend = Slow()
        if device:
            backend.use_device(device)
        return backend

    monkeypatch.setattr(timing, "SECONDS", 0.0)
    for name, value in {
        "backend_names": lambda: ["slow"],
        "make_backend": make,
        "measure_apart": device_calibration.measure_device,  # the child knows no such back-end
        "SIZE": 64,
        "LARGE": (64, 1),
        "PASTS": (32,),
        "PAUSE_S": 0.0,
        "ROUNDS": 2,
        "SECONDS": 0.0,
    }.items():
        monkeypatch.setattr(device_calibration, name, value)


def test_devices_are_measured_and_those_that_fail_are_named(
    caplog: pytest.LogCaptureFixture,
) -> None:
    said: list[str] = []
    with caplog.at_level(logging.WARNING):
        profiles = measure_devices(1, said.append)
    assert said == ["slow:good", "slow:broken"]
    assert "slow:broken was not measured: it does not answer" in caplog.text
    ((key, profile),) = profiles.items()
    assert key == "slow:good, driver 7"
    assert (profile.version, profile.source) == ("driver 7", "measured")
    assert profile.measured
    assert profile.chunks == (1, 8)
    assert set(profile.calls) == {"int8_row/ternary", "float/int4", "float/float32"} | {
        ATTENTION,
        ELEMENTS,
    }
    assert profile.call_s >= CALL_SECONDS + ROW_SECONDS
    assert profile.load_bytes_s and profile.store_bytes_s
    assert profile.weight_bytes > 0
    for calls in profile.calls.values():
        assert [call.rows for call in calls] == [1, 8]
        assert all(call.seconds >= (CALL_SECONDS + ROW_SECONDS * call.rows) / 2 for call in calls)


def test_the_work_of_a_call_is_that_of_its_rows() -> None:
    size, layers = device_calibration.SIZE, device_calibration.LAYERS
    assert linear("float", "int4").work(8) == 8 * layers * size * size
    assert norms(64, 2).work(8) == 8 * 2 * 64
    width = device_calibration.HEADS * device_calibration.HEAD_DIM
    assert attention(32).work(8) == 2 * width * 8 * (32 + 8)


def test_openvino_is_measured_as_it_computes(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("openvino")
    monkeypatch.undo()
    monkeypatch.setattr(timing, "SECONDS", 0.0)
    sizes = {"SIZE": 64, "LARGE": (64, 1), "PASTS": (256,), "PAUSE_S": 0.0}
    for name, value in {**sizes, "ROUNDS": 1, "SECONDS": 0.0}.items():
        monkeypatch.setattr(device_calibration, name, value)
    monkeypatch.setattr(device_calibration, "FAMILIES", (("float", "int4"),))
    monkeypatch.setattr("edgerun.backends.openvino.OpenvinoBackend.chunks", lambda self: (1, 64))
    profile = device_calibration.measure_device("openvino", "CPU", 1)
    assert set(profile.calls) == {"float/int4", ATTENTION, ELEMENTS}
    assert [(call.rows, call.past) for call in profile.calls[ATTENTION]] == [(1, 256), (64, 256)]
    assert np.isfinite([call.seconds for calls in profile.calls.values() for call in calls]).all()
    assert profile.mirrors
