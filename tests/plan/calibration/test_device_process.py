"""Devices measured in processes of their own, some of which do not come back."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import psutil
import pytest

from edgerun.backends.openvino.session import Session
from edgerun.backends.registry import make_backend
from edgerun.errors import BackendError
from edgerun.plan.calibration import device_process, devices
from edgerun.plan.calibration.device_process import CHILD, measure_apart
from edgerun.plan.calibration.devices import measure_devices

pytest.importorskip("openvino")

# The child's figures are small ones; "NPU" and "GPU" are the CPU, and compilers of some end it.
QUICK = """
import sys; sys.path[:] = sys.argv[1:]
from edgerun.backends.openvino import OpenvinoBackend, devices as openvino_devices
from edgerun.machine import timing
from edgerun.plan.calibration import devices
timing.SECONDS = 0.0
devices.SIZE, devices.LARGE, devices.PASTS, devices.PAUSE_S = 64, (64, 1), (256,), 0.0
devices.FAMILIES = (("float", "int4"),)
OpenvinoBackend.chunks = lambda self: (1, 64)
cpu = openvino_devices.DEVICES["CPU"]
openvino_devices.DEVICES = dict.fromkeys(("CPU", "GPU", "NPU"), cpu)
make = devices.make_backend
def make_backend(name, device=None, given=None):
    print("a compiler prints this")
    if device == "NPU":
        ABORT
    return make(name, device, given)
devices.make_backend = make_backend
from edgerun.plan.calibration.device_process import main; main()
"""
KILLED = "import os; os.kill(os.getpid(), 9)"
ABORTED = "import os; os.abort()"


@pytest.fixture(autouse=True)
def three_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if a GPU and an NPU were here, and this process compiled nothing."""

    def compile_here(*given: Any) -> None:
        raise AssertionError("this process compiles")

    def measures(self: object) -> Mapping[str, str]:
        return dict.fromkeys(("GPU", "NPU", "CPU"), "driver 7")

    monkeypatch.setattr(Session, "compile", compile_here)
    monkeypatch.setattr(type(make_backend("openvino")), "measures", measures)
    monkeypatch.setattr(devices, "backend_names", lambda: ["openvino"])


def test_a_compiler_that_ends_its_process_costs_one_device(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(device_process, "CHILD", QUICK.replace("ABORT", KILLED))
    profiles = measure_devices(1, lambda text: None)
    assert [record.message for record in caplog.records if record.levelno >= logging.WARNING] == [
        "openvino:NPU was not measured: its compiler or driver ended the process that measured it "
        "with signal 9 (SIGKILL)"
    ]
    assert list(profiles) == ["openvino:GPU, driver 7", "openvino:CPU, driver 7"]
    for profile in profiles.values():
        assert profile.chunks == (1, 64)
        assert profile.weight_bytes and profile.compile_s > 0 and profile.mirrors


def test_a_compiler_that_gives_up_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_process, "CHILD", QUICK.replace("ABORT", ABORTED))
    with pytest.raises(BackendError, match=r"process that measured it with signal 6 \(SIGABRT\)"):
        measure_apart("openvino", "NPU", 1)


def test_a_compiler_that_hangs_is_ended(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    hangs = "print('a compiler prints this', flush=True); import time; time.sleep(600)"
    monkeypatch.setattr(device_process, "CHILD", hangs)
    monkeypatch.setattr(device_process, "SECONDS", 0.5)
    others = psutil.Process().children()
    assert measure_devices(1, lambda text: None) == {}
    assert psutil.Process().children() == others
    assert [record.message for record in caplog.records if record.levelno >= logging.WARNING] == [
        f"openvino:{device} was not measured: it did not come to an end within 0.5 s, so its "
        "compiler or driver hangs"
        for device in ("GPU", "NPU", "CPU")
    ]


def test_what_a_device_says_is_passed_on() -> None:
    with pytest.raises(BackendError, match="the back-end 'openvino' has no device 'TPU'"):
        measure_apart("openvino", "TPU", 1)


def test_a_process_that_says_nothing_is_said(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(device_process, "CHILD", "import sys; sys.exit(3)")
    with pytest.raises(BackendError, match="with exit code 3"):
        measure_apart("openvino", "CPU", 1)
    monkeypatch.setattr(device_process, "CHILD", CHILD)
    monkeypatch.setattr(device_process.sys, "executable", str(tmp_path / "python"))
    with pytest.raises(BackendError, match="no process could be started for it: No such file"):
        measure_apart("openvino", "CPU", 1)
