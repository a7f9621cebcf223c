"""Checks device tree overlays (.dtbo) as the board will, and has dtc make them."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from pathlib import Path

from edgerun.errors import MissingDependencyError
from edgerun_hw.deploy.broker.application import overlay
from edgerun_hw.deploy.broker.application.manifest import Manifest
from edgerun_hw.deploy.broker.errors import RefusalError
from edgerun_hw.deploy.errors import PackageError

COMPILE_S = 30


def check_overlay(data: bytes, manifest: Manifest) -> None:
    """Checks the overlay of an application with the rules of the board's helper.

    Raises:
        PackageError: the board would refuse it.
    """
    try:
        overlay.check_overlay(data, manifest)
    except RefusalError as error:
        raise PackageError(str(error)) from None


def compile_overlay(source: Path) -> bytes:
    """Compiles a .dts with ``dtc``.

    Raises:
        MissingDependencyError: there is no dtc.
        PackageError: the source has errors; the message is the compiler's first.
    """
    compiler = shutil.which("dtc")
    if compiler is None:
        raise MissingDependencyError(
            "the device tree compiler dtc is not installed: install the package "
            "device-tree-compiler, or compile the overlay elsewhere and pass --dtbo"
        )
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "overlay.dtbo"
        process = subprocess.run(
            [compiler, "-@", "-I", "dts", "-O", "dtb", "-o", str(out), str(source.resolve())],
            capture_output=True,
            text=True,
            timeout=COMPILE_S,
            check=False,
        )
        if process.returncode or not out.exists():
            errors = [line for line in process.stderr.splitlines() if "rror" in line]
            raise PackageError(
                f"dtc refuses {source}: {errors[0] if errors else 'it says nothing'}"
            )
        return out.read_bytes()
