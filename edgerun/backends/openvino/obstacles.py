"""What is missing of a device, and the command that mends it.

To find out takes looking at files, not at OpenVINO, whose import takes more than a second.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterable
from pathlib import Path

INTEL = "0x8086"
ACCELERATORS = Path("/sys/class/accel")
ACCELERATOR_FILES = Path("/dev/accel")
GRAPHICS = Path("/sys/class/drm")
GRAPHICS_FILES = Path("/dev/dri")
NPU_DRIVER = "github.com/intel/linux-npu-driver/releases"
JOIN_GROUP = "sudo usermod -aG render $USER, then log in anew"
INSTALL_LOADER = "apt install ocl-icd-libopencl1 intel-opencl-icd"


def no_obstacle(number: int) -> str:
    """Nothing is missing: the processor is always there."""
    return ""


def gpu_obstacle(number: int) -> str:
    """What is missing of a GPU of Intel's, of several the one with a number from 0 on; or empty."""
    if not can_load("libOpenCL.so.1"):
        return f"the OpenCL loader libOpenCL.so.1 is missing: {INSTALL_LOADER}"
    count = gpu_count()
    if not count:
        return f"no GPU of Intel's: {GRAPHICS} lists none"
    if number >= count:
        there = ", ".join(f"GPU.{each}" for each in range(count))
        return f"no GPU.{number}: {GRAPHICS} lists {count} of Intel's, that is {there}"
    return _file_obstacle("GPU", GRAPHICS_FILES, "renderD*")


def gpu_count() -> int:
    """GPUs of Intel's that Linux lists."""
    return [_text(path) for path in GRAPHICS.glob("card*/device/vendor")].count(INTEL)


def npu_obstacle(number: int) -> str:
    """What is missing of an NPU of Intel's; or empty."""
    if not list(ACCELERATORS.glob("accel*")):
        return (
            f"no NPU: {ACCELERATORS} lists none; Core Ultra processors have one, whose kernel "
            "driver is intel_vpu, from Linux 6.8 on: sudo modprobe intel_vpu"
        )
    if obstacle := _file_obstacle("NPU", ACCELERATOR_FILES, "accel*"):
        return obstacle
    if not (can_load("libze_loader.so.1") and can_load("libze_intel_npu.so.1")):
        return (
            "the NPU's driver is missing (libze_loader.so.1, libze_intel_npu.so.1): sudo dpkg -i "
            f"level-zero*.deb intel-level-zero-npu*.deb, from {NPU_DRIVER}"
        )
    if not can_load("libnpu_driver_compiler.so"):
        return (
            "the NPU's compiler is missing (libnpu_driver_compiler.so): sudo dpkg -i "
            f"intel-driver-compiler-npu*.deb, from {NPU_DRIVER}"
        )
    return ""


def unlisted(kind: str, name: str, listed: Iterable[str]) -> str:
    """Why OpenVINO may list no device although nothing seems to be missing.

    Args:
        kind: of device, ``NPU`` or ``GPU``.
        name: of the device, such as ``GPU.1``.
        listed: the numbers that OpenVINO lists for the kind.
    """
    there = ", ".join(f"{kind}.{number}" if number else kind for number in listed)
    newer = {"NPU": NPU_DRIVER, "GPU": "apt install --only-upgrade intel-opencl-icd"}.get(kind, "")
    return (
        f"OpenVINO lists {f'no {name}, only {there}' if there else f'no {kind}'}, though its "
        f"files are here: its driver may be too old for this OpenVINO ({newer})"
    )


def can_load(library: str) -> bool:
    """Whether a shared library is here."""
    try:
        ctypes.CDLL(library)
    except OSError:
        return False
    return True


def can_open(path: Path) -> bool:
    """Whether this user may read and write a file."""
    return os.access(path, os.R_OK | os.W_OK)


def _file_obstacle(kind: str, folder: Path, pattern: str) -> str:
    """Why no device file can be opened; empty if one can."""
    paths = sorted(folder.glob(pattern))
    if not paths:
        return (
            f"the {kind}'s device file {folder}/{pattern} is missing; into a "
            f"container it comes with docker run --device {folder}"
        )
    if not any(map(can_open, paths)):
        return f"the {kind}'s device file {paths[0]} may not be opened by this user: {JOIN_GROUP}"
    return ""


def _text(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""
