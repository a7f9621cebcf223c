"""Runs Python on this processor as if it had AMX.

    python -m tools.emulate_isa tiles -- -m pytest -q tests/conformance/kernels -k amx
    python -m tools.emulate_isa tiles -- -m edgerun run models/small/bundle "Once"

Everything else runs as it is and at full speed; a tile instruction takes a few microseconds. It
needs AVX-512 with VNNI, Linux and gcc. Kernels have a cache of their own.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
from pathlib import Path

from edgerun.env import settings
from edgerun.kernels.isa import host_features, obstacle

HERE = Path(__file__).parent
SOURCE, SITE = HERE / "tiles.c", HERE / "site"
COMPILE = ("-O3", "-march=native", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC")
BASE, ROUNDING = "avx512vnni", "avx512bf16"  # AMX needs all of them


def refusal() -> str:
    """Why tiles cannot be emulated here; nothing if they can."""
    if why := obstacle(BASE):
        return f"tiles are emulated on processors with AVX-512 VNNI: {why}"
    if ROUNDING not in host_features():
        return f"tiles are emulated on processors that round to bfloat16 ({ROUNDING})"
    if shutil.which("gcc") is None:
        return "tiles are emulated by a library that gcc compiles; there is no gcc"
    return ""


def environment(folder: Path) -> dict[str, str]:
    """Variables under which every process has tiles; what is compiled goes to a folder.

    Raises:
        RuntimeError: this machine cannot run what is around tiles, or has no compiler.
    """
    if why := refusal():
        raise RuntimeError(why)
    folder.mkdir(parents=True, exist_ok=True)
    path = [str(SITE), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {
        **os.environ,
        "LD_PRELOAD": str(library(folder)),
        "PYTHONPATH": os.pathsep.join(path),
        "EDGERUN_CACHE": str(folder),
    }


def library(folder: Path) -> Path:
    """The emulator, compiled anew if it changed."""
    target = folder / "tiles.so"
    if not target.exists() or target.stat().st_mtime < SOURCE.stat().st_mtime:
        command = ["gcc", *COMPILE, "-o", str(target), str(SOURCE), "-ldl", "-lm"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(f"gcc failed: {done.stderr}")
    return target


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the command's options."""
    parser.add_argument("arguments", nargs="+", help="what Python is to run, behind --")


def run(options: argparse.Namespace) -> int:
    """Runs it; returns its exit status."""
    variables = environment(settings().cache_dir / "emulate_isa" / "tiles")
    return subprocess.run(
        [sys.executable, *options.arguments], env=variables, check=False
    ).returncode
