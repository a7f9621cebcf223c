"""Devices that OpenVINO can compute on, and what is missing where one is not there.

To find out takes looking at files, not at OpenVINO, whose import takes more than a second.
"""

from __future__ import annotations

import ctypes
import importlib.util
import platform
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

from edgerun.backends.base import Support
from edgerun.backends.openvino.matrices import Stored
from edgerun.errors import InputError

NAME = "openvino"
COMPLETE = (2026, 4)  # the first that was tried; 2025's partitioning of NPUs differs
INSTALL = "pip install 'edgerun[npu]'"
INTEL = "0x8086"
ACCELERATORS = Path("/sys/class/accel")
GRAPHICS = Path("/sys/class/drm")
LIBRARIES = ("/usr/lib/x86_64-linux-gnu", "/usr/lib64", "/usr/lib", "/usr/local/lib")
SEVERAL = ("AUTO", "HETERO", "MULTI", "BATCH")
HALVES = {"INFERENCE_PRECISION_HINT": "f16"}
EXACT = {"INFERENCE_PRECISION_HINT": "f32", "DYNAMIC_QUANTIZATION_GROUP_SIZE": "0"}
# By default what does not compile for an NPU, or fails on it, is left to the CPU without a word.
PARTITIONED = {"NPU_USE_NPUW": "YES", "NPUW_FALLBACK_EXEC": "NO"}
# How networks are cut into parts: by default some compute wrong keys and values without a word.
PARTITIONINGS = (
    {"NPUW_FOLD": "YES"},
    {"NPUW_ONLINE_PIPELINE": "NONE"},
    {"NPUW_ONLINE_PIPELINE": "NONE", "NPUW_F16IC": "NO"},
)

Config = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Device:
    """One that OpenVINO has a plug-in for.

    Attributes:
        name: what users call it.
        plugin: what OpenVINO calls it.
        configurations: options to compile with; the first that computes what the CPU does counts.
        stored: how it holds weights.
        obstacle: says what is missing here, and what mends it; empty if nothing is.
        summary: what runs there, for people.
        threads: whether it computes with threads of the processor.
        is_half: whether it computes in half precision throughout. GPUs do, too, but for norms.
        compiles_in_child: whether its compiler runs in a process of its own, since it takes long or
            may end that process.
        calibrated: whether it is worth measuring for plans: not what stands in for others.
        driver: says which version of its driver there is.
    """

    name: str
    plugin: str
    configurations: tuple[Config, ...]
    stored: Stored
    obstacle: Callable[[], str]
    summary: str
    threads: bool = False
    is_half: bool = False
    compiles_in_child: bool = False
    calibrated: bool = True
    driver: Callable[[], str] = str

    @property
    def title(self) -> str:
        """What messages call it."""
        return f"{NAME}:{self.name}"

    @property
    def version(self) -> str:
        """Of what drives it: what was measured with another counts no more."""
        return f"OpenVINO {installed_version()}{self.driver()}"

    def probe(self) -> Support:
        """Whether it seems to be there; opens nothing."""
        obstacle = missing_package() or self.obstacle()
        return Support(not obstacle, obstacle or self.summary)


def find_device(name: str) -> Device:
    """The device called ``name``; of several of a kind, ``GPU.1`` is the second.

    Raises:
        InputError: there is none of that name, or it stands for several.
    """
    kind, _, number = name.partition(".")
    if re.split(r"[:,]", name)[0].upper() in SEVERAL:
        raise InputError(
            f"the device {name!r} lets OpenVINO choose without a word, so edgerun does not use it: "
            f"name a device for each part, as in --place prefill={NAME}:NPU,decode=cpu"
        )
    device = DEVICES.get(kind)
    if device is None or (number and not (number.isdigit() and kind == "GPU")):
        raise InputError(
            f"the back-end '{NAME}' has no device {name!r}; there are {', '.join(DEVICES)}"
        )
    if not number:
        return device
    from dataclasses import replace

    return replace(device, name=name, plugin=name)


@cache
def missing_package() -> str:
    """What is wrong with the installed OpenVINO, or empty."""
    if importlib.util.find_spec("openvino") is None:
        return f"OpenVINO is not installed: {INSTALL}"
    installed = installed_version()
    if not installed:
        return f"the package openvino is damaged, it has no version: {INSTALL}"
    if tuple(int(part) for part in re.findall(r"\d+", installed)[:2]) < COMPLETE:
        needed = ".".join(map(str, COMPLETE))
        return f"OpenVINO {installed} is too old, {needed} or newer is needed: {INSTALL}"
    return ""


@cache
def installed_version() -> str:
    """Of OpenVINO, without importing it or what reads packages, which takes 30 ms; or empty."""
    spec = importlib.util.find_spec("openvino")
    for folder in spec.submodule_search_locations or () if spec else ():
        for path in sorted(Path(folder).parent.glob("openvino-*.dist-info")):
            return path.name.removeprefix("openvino-").removesuffix(".dist-info")
    return ""


def _driver_version(pattern: str) -> str:
    """The kernel, whose driver it is, and the date of what drives the device above it."""
    libraries = sorted(path for folder in LIBRARIES for path in Path(folder).glob(pattern))
    dates = [time.strftime("%Y-%m-%d", time.gmtime(path.stat().st_mtime)) for path in libraries]
    return f", Linux {platform.release()}, {pattern.rpartition('/')[2]} of {max(dates, default='')}"


def _gpu_version() -> str:
    return _driver_version("intel-opencl/libigdrcl.so")


def _npu_version() -> str:
    return _driver_version("libze_intel_npu.so.1")


def _nothing() -> str:
    return ""


def _gpu_obstacle() -> str:
    if not _can_load("libOpenCL.so.1"):
        return (
            "the OpenCL loader libOpenCL.so.1 is missing: "
            "apt install ocl-icd-libopencl1 intel-opencl-icd"
        )
    vendors = [_text(path) for path in sorted(GRAPHICS.glob("card*/device/vendor"))]
    if INTEL not in vendors:
        return f"no GPU of Intel's: {GRAPHICS} lists none"
    return ""


def _npu_obstacle() -> str:
    if not list(ACCELERATORS.glob("accel*")):
        return (
            f"no NPU: {ACCELERATORS} lists none; Core Ultra processors have one, whose kernel "
            "driver is intel_vpu, from Linux 6.8 on"
        )
    if not (_can_load("libze_loader.so.1") and _can_load("libze_intel_npu.so.1")):
        return (
            "the NPU's driver is missing (libze_loader.so.1, libze_intel_npu.so.1): install level-"
            "zero and intel-level-zero-npu from github.com/intel/linux-npu-driver"
        )
    if not _can_load("libnpu_driver_compiler.so"):
        return (
            "the NPU's compiler is missing (libnpu_driver_compiler.so): install intel-driver-"
            "compiler-npu from github.com/intel/linux-npu-driver"
        )
    return ""


def _can_load(library: str) -> bool:
    try:
        ctypes.CDLL(library)
    except OSError:
        return False
    return True


def _text(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""


_ALL = (
    Device("CPU", "CPU", (EXACT,), Stored.UNSIGNED, _nothing, "the processor", threads=True),
    Device(
        "GPU",
        "GPU",
        (HALVES, EXACT),
        Stored.SIGNED,
        _gpu_obstacle,
        "a GPU of Intel's; never tried on one",
        compiles_in_child=True,
        driver=_gpu_version,
    ),
    Device(
        "NPU",
        "NPU",
        tuple({**PARTITIONED, "NPUW_DEVICES": "NPU", **each} for each in PARTITIONINGS),
        Stored.SIGNED,
        _npu_obstacle,
        "an NPU of Intel's; never tried on one",
        is_half=True,
        compiles_in_child=True,
        driver=_npu_version,
    ),
    Device(
        "NPUW-CPU",
        "NPU",
        tuple({**PARTITIONED, "NPUW_DEVICES": "CPU", **each} for each in PARTITIONINGS),
        Stored.SIGNED,
        _nothing,
        "the NPU's partitioner with the processor in place of the NPU",
        is_half=True,
        calibrated=False,
    ),
)
DEVICES: Mapping[str, Device] = MappingProxyType({device.name: device for device in _ALL})
