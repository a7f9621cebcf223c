"""``edgerun doctor``: what this machine has, and what is missing."""

from __future__ import annotations

import json
import platform
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Annotated, Any

import typer

from edgerun.cli import options

PACKAGES = ("numpy", "numba", "llvmlite", "onnx", "onnxruntime", "tokenizers", "minijinja")
OPTIONAL = ("openvino", "openvino-genai", "numba-cuda", "safetensors", "gguf", "huggingface_hub")


def register(app: typer.Typer) -> None:
    """Adds the command."""
    app.command("doctor", help="Show what this machine has, and what is missing.")(doctor)


def doctor(
    as_json: options.Json = False,
    calibrate: Annotated[
        bool, typer.Option("--calibrate", help="Measure the memory's speed again.")
    ] = False,
) -> None:
    """Runs the command; the parameters are the options."""
    found = diagnosis(calibrate=calibrate)
    if as_json:
        print(json.dumps(found, ensure_ascii=False))
        return
    from edgerun.cli.tables import print_pairs

    for title, part in found.items():
        print_pairs(title, part if isinstance(part, dict) else {title: part})


def diagnosis(*, calibrate: bool = False) -> dict[str, Any]:
    """What ``--json`` prints."""
    from edgerun import __version__, env

    settings = env.settings()
    return {
        "edgerun": {"version": __version__, "python": sys.version.split()[0]},
        "machine": {
            "system": f"{platform.system()} {platform.release()}",
            "architecture": platform.machine(),
            "cores": env.usable_cores(),
            "threads": settings.threads or env.usable_cores(),
            **_instructions(),
        },
        "memory": _memory(calibrate=calibrate),
        "back-ends": _backends(),
        "packages": {name: _version(name) or "missing" for name in PACKAGES},
        "optional": {name: _version(name) or "not installed" for name in OPTIONAL},
        "folders": _folders(settings.cache_dir),
    }


def _instructions() -> dict[str, Any]:
    from edgerun.kernels.isa import available_isas, host_features, selected_isa

    return {
        "isa": selected_isa(),
        "isas": available_isas(),
        "features": sorted(host_features()),
    }


def _memory(*, calibrate: bool) -> dict[str, Any]:
    import psutil

    memory = psutil.virtual_memory()
    return {
        "total_bytes": memory.total,
        "available_bytes": memory.available,
        "read_gb_per_s": _bandwidth(again=calibrate),
    }


def _bandwidth(*, again: bool) -> float | str:
    from edgerun import env
    from edgerun.profile import machine_bandwidth

    threads = env.settings().threads or env.usable_cores()
    try:
        return round(machine_bandwidth(threads, again=again) / 1e9, 2)
    except Exception as error:  # a doctor reports what is broken, whatever it is
        return f"broken: {type(error).__name__}: {error}"


def _backends() -> dict[str, str]:
    from edgerun.backends.registry import backend_names, make_backend

    found = {}
    for name in backend_names():
        try:
            support = make_backend(name).probe()
            found[name] = "ready" if support else support.reason
        except Exception as error:  # a doctor reports what is broken, whatever it is
            found[name] = f"broken: {type(error).__name__}: {error}"
    return found


def _folders(cache: Path) -> dict[str, str]:
    from edgerun.errors import BundleError
    from edgerun.loading import resolve

    try:
        default = str(resolve(None))
    except BundleError:
        default = "none"
    return {"cache": str(cache), "default_model": default}


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
