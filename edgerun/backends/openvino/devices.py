"""Devices that OpenVINO can compute on, and what is missing where one is not there.

A table: what OpenVINO is told for each. What may be missing of one is in ``obstacles.py``.
"""

from __future__ import annotations

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
from edgerun.backends.openvino.obstacles import gpu_count, gpu_obstacle, no_obstacle, npu_obstacle
from edgerun.errors import InputError
from edgerun.values import whole_number

NAME = "openvino"
COMPLETE = (2026, 4)  # the first that was tried; 2025's partitioning of NPUs differs
UNTRIED = "edgerun was never tried on one"
INSTALL = "pip install 'edgerun[npu]'"
LIBRARIES = ("/usr/lib/x86_64-linux-gnu", "/usr/lib64", "/usr/lib", "/usr/local/lib")
SEVERAL = ("AUTO", "HETERO", "MULTI", "BATCH")
# By default plug-ins for CPUs and GPUs round activations to 8 bits in their own way.
UNROUNDED = {"DYNAMIC_QUANTIZATION_GROUP_SIZE": "0"}
HALVES = {**UNROUNDED, "INFERENCE_PRECISION_HINT": "f16"}
EXACT = {**UNROUNDED, "INFERENCE_PRECISION_HINT": "f32"}
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
        obstacle: says what is missing of the one with a number, and what mends it; or empty.
        summary: what runs there, for people.
        caveat: what has to be known of all that is said of it; or empty.
        threads: whether it computes with threads of the processor.
        is_half: whether it computes in half precision throughout. GPUs do, too, but for norms.
        compiles_in_child: whether its compiler runs in a process of its own, since it takes long or
            may end that process.
        calibrated: whether it is worth measuring for plans: not what stands in for others.
        driver: says which version of its driver there is.
        number: which of several of a kind.
        memory: OpenVINO's property that says how much memory it has, in bytes; or empty.
    """

    name: str
    plugin: str
    configurations: tuple[Config, ...]
    stored: Stored
    obstacle: Callable[[int], str]
    summary: str
    caveat: str = ""
    threads: bool = False
    is_half: bool = False
    compiles_in_child: bool = False
    calibrated: bool = True
    driver: Callable[[], str] = str
    number: int = 0
    memory: str = ""

    @property
    def title(self) -> str:
        """What messages call it."""
        return f"{NAME}:{self.name}"

    @property
    def description(self) -> str:
        """What it is, for people, with what has to be known of it."""
        return "; ".join(filter(None, (self.summary, self.caveat)))

    @property
    def version(self) -> str:
        """Of what drives it: what was measured with another counts no more."""
        return f"OpenVINO {installed_version()}{self.driver()}"

    def probe(self) -> Support:
        """Whether it seems to be there; opens nothing."""
        obstacle = missing_package() or self.obstacle(self.number)
        return Support(not obstacle, obstacle or self.description)


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
    if device is None or (number and (whole_number(number) is None or kind != "GPU")):
        raise InputError(
            f"the back-end '{NAME}' has no device {name!r}; there are {', '.join(DEVICES)}"
        )
    if not number:
        return device
    from dataclasses import replace

    return replace(device, name=name, plugin=name, number=int(number))


def all_devices() -> list[Device]:
    """All that OpenVINO has plug-ins for; of several GPUs that are here, each."""
    more = (find_device(f"GPU.{number}") for number in range(1, gpu_count()))
    return [*DEVICES.values(), *more]


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


_ALL = (
    Device("CPU", "CPU", (EXACT,), Stored.UNSIGNED, no_obstacle, "the processor", threads=True),
    Device(
        "GPU",
        "GPU",
        (HALVES, EXACT),
        Stored.SIGNED,
        gpu_obstacle,
        "a GPU of Intel's",
        UNTRIED,
        compiles_in_child=True,
        driver=_gpu_version,
        memory="GPU_DEVICE_TOTAL_MEM_SIZE",
    ),
    Device(
        "NPU",
        "NPU",
        tuple({**PARTITIONED, "NPUW_DEVICES": "NPU", **each} for each in PARTITIONINGS),
        Stored.SIGNED,
        npu_obstacle,
        "an NPU of Intel's",
        UNTRIED,
        is_half=True,
        compiles_in_child=True,
        driver=_npu_version,
        memory="NPU_DEVICE_TOTAL_MEM_SIZE",
    ),
    Device(
        "NPUW-CPU",
        "NPU",
        # Without UNROUNDED: blobs of the partitioner do not keep it, so that a second start would
        # compute something else than the first.
        tuple({**PARTITIONED, "NPUW_DEVICES": "CPU", **each} for each in PARTITIONINGS),
        Stored.SIGNED,
        no_obstacle,
        "the NPU's partitioner with the processor in place of the NPU",
        is_half=True,
        calibrated=False,
    ),
)
DEVICES: Mapping[str, Device] = MappingProxyType({device.name: device for device in _ALL})
