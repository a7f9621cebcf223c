"""What is said of devices that are not there: one sentence each, without importing OpenVINO."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from edgerun.backends.openvino import devices
from edgerun.backends.openvino.devices import DEVICES, find_device, missing_package
from edgerun.backends.registry import find_candidates, make_backend
from edgerun.cli.doctor import diagnosis
from edgerun.errors import InputError, UnsupportedError


@pytest.fixture(autouse=True)
def _looked_at_anew() -> Iterator[None]:
    missing_package.cache_clear()
    yield
    missing_package.cache_clear()


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., None]:
    """A machine with some libraries and devices, and OpenVINO."""

    def make(*libraries: str, vendor: str = "", accelerators: int = 0) -> None:
        monkeypatch.setattr(devices, "missing_package", lambda: "")
        monkeypatch.setattr(devices, "_can_load", lambda name: name in libraries)
        monkeypatch.setattr(devices, "GRAPHICS", tmp_path / "drm")
        monkeypatch.setattr(devices, "ACCELERATORS", tmp_path / "accel")
        if vendor:
            card = tmp_path / "drm" / "card0" / "device"
            card.mkdir(parents=True)
            (card / "vendor").write_text(f"{vendor}\n")
        for number in range(accelerators):
            (tmp_path / "accel" / f"accel{number}").mkdir(parents=True)

    return make


OPENCL = "libOpenCL.so.1"
DRIVER = ("libze_loader.so.1", "libze_intel_npu.so.1")


@pytest.mark.parametrize(
    ("device", "libraries", "found", "reason"),
    [
        ("GPU", (), {"vendor": "0x8086"}, "the OpenCL loader libOpenCL.so.1 is missing: apt"),
        ("GPU", (OPENCL,), {}, "no GPU of Intel's"),
        ("GPU", (OPENCL,), {"vendor": "0x10de"}, "no GPU of Intel's"),
        ("NPU", (), {}, "no NPU: .* from Linux 6.8 on"),
        ("NPU", DRIVER[:1], {"accelerators": 1}, "the NPU's driver is missing"),
        ("NPU", DRIVER, {"accelerators": 1}, "the NPU's compiler is missing"),
    ],
)
def test_what_is_missing_is_said(
    device: str,
    libraries: tuple[str, ...],
    found: dict[str, object],
    reason: str,
    machine: Callable[..., None],
) -> None:
    machine(*libraries, **found)
    with pytest.raises(UnsupportedError, match=reason) as error:
        find_candidates("openvino", device)
    assert "\n" not in str(error.value)


def test_what_is_there_is_named_as_never_tried(machine: Callable[..., None]) -> None:
    machine(OPENCL, *DRIVER, "libnpu_driver_compiler.so", vendor="0x8086", accelerators=1)
    for device in ("GPU", "NPU"):
        support = DEVICES[device].probe()
        assert support and "never tried" in support.reason


@pytest.mark.parametrize("name", ["AUTO", "AUTO:NPU,CPU", "HETERO:NPU,CPU", "MULTI:GPU", "auto"])
def test_devices_that_stand_for_several_are_refused(name: str) -> None:
    with pytest.raises(InputError, match="chooses? without a word.*--place prefill=openvino:NPU"):
        find_device(name)


@pytest.mark.parametrize("name", ["TPU", "cpu", "", "NPU.1", "GPU.x", "GPU."])
def test_other_devices_are_refused_by_name(name: str) -> None:
    if name == "GPU.":  # an empty number is none
        assert find_device(name).name == "GPU"
        return
    with pytest.raises(InputError, match="has no device .*; there are CPU, GPU, NPU, NPUW-CPU"):
        find_device(name)


def test_a_second_gpu_has_a_number() -> None:
    backend = make_backend("openvino", "GPU.1")
    assert backend.name == "openvino:GPU.1"
    assert find_device("GPU.1").plugin == "GPU.1"


@pytest.mark.parametrize(("name", "where"), [("NPU", "NPU"), ("NPUW-CPU", "CPU")])
def test_nothing_is_left_to_another_device(name: str, where: str) -> None:
    """OpenVINO's default is NPU,CPU: what the NPU refuses would run on the CPU without a word."""
    for config in DEVICES[name].configurations:
        assert (config["NPUW_DEVICES"], config["NPUW_FALLBACK_EXEC"]) == (where, "NO")


def test_a_back_end_without_a_device_asks_for_one() -> None:
    with pytest.raises(UnsupportedError, match="no device was named: --device CPU, GPU, NPU"):
        find_candidates("openvino")


def test_openvino_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UnsupportedError, match=r"is not installed: pip install 'edgerun\[npu\]'"):
        find_candidates("openvino", "CPU")


@pytest.mark.parametrize(
    ("version", "is_right"),
    [("2025.3.0", False), ("2026.3.9", False), ("2026.4.1", True), ("2027.0.0", True)],
)
def test_versions(version: str, is_right: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: True)
    monkeypatch.setattr(devices, "installed_version", lambda: version)
    reason = missing_package()
    assert (reason == "") == is_right
    assert is_right or f"OpenVINO {version} is too old, 2026.4 or newer is needed" in reason


def test_the_version_is_that_of_the_package() -> None:
    pytest.importorskip("openvino")
    assert devices.installed_version() == importlib.metadata.version("openvino")
    assert find_device("CPU").version == f"OpenVINO {devices.installed_version()}"
    assert ", Linux " in find_device("NPU").version


def test_looking_for_devices_does_not_import_openvino() -> None:
    code = (
        "import sys; from edgerun.backends.registry import make_backend; "
        "print([bool(s) for s in make_backend('openvino').devices().values()]); "
        "assert 'openvino' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_a_doctor_has_a_line_for_each_device(machine: Callable[..., None]) -> None:
    machine(OPENCL, *DRIVER, "libnpu_driver_compiler.so", accelerators=1)
    states = diagnosis()["back-ends"]
    assert states["openvino:CPU"] == "ready: the processor"
    assert states["openvino:NPU"] == "ready: an NPU of Intel's; never tried on one"
    assert states["openvino:GPU"].startswith("no GPU of Intel's")
    assert "openvino" not in states
