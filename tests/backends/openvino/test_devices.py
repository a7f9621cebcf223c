"""What is said of devices that are not there: one sentence each, without importing OpenVINO."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import subprocess
import sys

import pytest

from edgerun.backends.openvino import devices
from edgerun.backends.openvino.devices import DEVICES, find_device, missing_package
from edgerun.backends.registry import find_candidates, make_backend
from edgerun.cli.doctor import diagnosis
from edgerun.errors import InputError, UnsupportedError
from tests.support.machines import (
    EVERYTHING,
    INTEL,
    NPU_DRIVER,
    NVIDIA,
    OPENCL,
    Pretend,
)

ONE_NPU = {"accelerators": 1}
ONE_GPU = {"vendors": (NVIDIA, INTEL)}
CLOSED = "may not be opened by this user: sudo usermod -aG render"


@pytest.mark.parametrize(
    ("device", "libraries", "present", "reason"),
    [
        ("GPU", (), ONE_GPU, "the OpenCL loader libOpenCL.so.1 is missing: apt"),
        ("GPU", (OPENCL,), {}, "no GPU of Intel's"),
        ("GPU", (OPENCL,), {"vendors": (NVIDIA,)}, "no GPU of Intel's"),
        ("GPU", (OPENCL,), ONE_GPU | {"files": False}, "renderD. is missing; .*--device"),
        ("GPU", (OPENCL,), ONE_GPU | {"is_open": False}, f"renderD128 {CLOSED}"),
        ("GPU.1", (OPENCL,), ONE_GPU, r"no GPU.1: .* lists 1 of Intel's, that is GPU\.0"),
        ("NPU", (), {}, "no NPU: .* from Linux 6.8 on: sudo modprobe intel_vpu"),
        ("NPU", NPU_DRIVER, ONE_NPU | {"files": False}, "accel. is missing; into a container"),
        ("NPU", NPU_DRIVER, ONE_NPU | {"is_open": False}, f"accel0 {CLOSED}"),
        ("NPU", NPU_DRIVER[:1], ONE_NPU, "the NPU's driver is missing .* sudo dpkg -i level-zero"),
        ("NPU", NPU_DRIVER, ONE_NPU, "the NPU's compiler is missing .* sudo dpkg -i intel-driver"),
    ],
)
def test_what_is_missing_is_said(
    device: str,
    libraries: tuple[str, ...],
    present: dict[str, object],
    reason: str,
    pretend: Pretend,
) -> None:
    pretend(*libraries, **present)
    with pytest.raises(UnsupportedError, match=reason) as error:
        find_candidates("openvino", device)
    assert "\n" not in str(error.value)


def test_what_is_there_is_named_as_never_tried(pretend: Pretend) -> None:
    pretend(*EVERYTHING, vendors=(INTEL, INTEL), accelerators=1)
    for device in ("GPU", "GPU.1", "NPU"):
        support = find_device(device).probe()
        assert support and "never tried" in support.reason


@pytest.mark.parametrize("name", ["AUTO", "AUTO:NPU,CPU", "HETERO:NPU,CPU", "MULTI:GPU", "auto"])
def test_devices_that_stand_for_several_are_refused(name: str) -> None:
    with pytest.raises(InputError, match="chooses? without a word.*--place prefill=openvino:NPU"):
        find_device(name)


@pytest.mark.parametrize("name", ["TPU", "cpu", "", "NPU.1", "GPU.x", "GPU.²", "GPU."])
def test_other_devices_are_refused_by_name(name: str) -> None:
    if name == "GPU.":  # an empty number is none
        assert find_device(name).name == "GPU"
        return
    with pytest.raises(InputError, match="has no device .*; there are CPU, GPU, NPU, NPUW-CPU"):
        find_device(name)


def test_of_several_gpus_each_is_listed_and_measured(pretend: Pretend) -> None:
    pretend(OPENCL, vendors=(INTEL, NVIDIA, INTEL))
    backend = make_backend("openvino")
    assert [name for name in backend.devices() if "GPU" in name] == ["GPU", "GPU.1"]
    assert [name for name in backend.measures() if "GPU" in name] == ["GPU", "GPU.1"]


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


def test_openvino_is_not_installed(pretend: Pretend, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UnsupportedError, match=r"is not installed: pip install 'edgerun\[npu\]'"):
        find_candidates("openvino", "CPU")


@pytest.mark.parametrize(
    ("version", "is_right"),
    [("2025.3.0", False), ("2026.3.9", False), ("2026.4.1", True), ("2027.0.0", True)],
)
def test_versions(
    version: str, is_right: bool, pretend: Pretend, monkeypatch: pytest.MonkeyPatch
) -> None:
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


def test_a_doctor_has_a_line_for_each_device(pretend: Pretend) -> None:
    pretend(*EVERYTHING, accelerators=1)
    states = diagnosis()["back-ends"]
    assert states["openvino:CPU"] == "ready: the processor"
    assert states["openvino:NPU"] == "ready: an NPU of Intel's; edgerun was never tried on one"
    assert states["openvino:GPU"].startswith("no GPU of Intel's")
    assert "openvino" not in states
