"""Machines that nobody has here, as far as files and libraries tell of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from edgerun.backends.openvino import devices, obstacles

INTEL, NVIDIA = "0x8086", "0x10de"
OPENCL = "libOpenCL.so.1"
NPU_DRIVER = ("libze_loader.so.1", "libze_intel_npu.so.1")
NPU_COMPILER = "libnpu_driver_compiler.so"
EVERYTHING = (OPENCL, *NPU_DRIVER, NPU_COMPILER)
FOLDERS = ("GRAPHICS", "GRAPHICS_FILES", "ACCELERATORS", "ACCELERATOR_FILES")

Pretend = Callable[..., None]


def pretender(monkeypatch: pytest.MonkeyPatch, folder: Path) -> Pretend:
    """Returns what makes this machine look like another one that has OpenVINO."""

    def pretend(
        *libraries: str,
        vendors: Sequence[str] = (),
        accelerators: int = 0,
        files: bool = True,
        is_open: bool = True,
    ) -> None:
        monkeypatch.setattr(devices, "missing_package", lambda: "")
        monkeypatch.setattr(obstacles, "can_load", lambda name: name in libraries)
        monkeypatch.setattr(obstacles, "can_open", lambda path: is_open)
        for name in FOLDERS:
            monkeypatch.setattr(obstacles, name, folder / name)
        paths = [folder / "GRAPHICS" / f"card{number}" / "device" for number in range(len(vendors))]
        paths += [folder / "ACCELERATORS" / f"accel{number}" for number in range(accelerators)]
        if files:
            paths += [
                folder / "GRAPHICS_FILES" / "renderD128",
                folder / "ACCELERATOR_FILES" / "accel0",
            ]
        for path in paths:
            path.mkdir(parents=True)
        for vendor, path in zip(vendors, paths, strict=False):
            (path / "vendor").write_text(f"{vendor}\n")

    return pretend
