"""Compiles and runs the bench of a single unit (``hw/tb/units``): no memory, no registers."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from edgerun_hw.build.sources import digest, hardware_folder
from edgerun_hw.simulate.toolchain import find_compiler, find_verilator
from edgerun_hw.synthesis.hierarchy import needed_files

ALWAYS = 256  # of 256


def build_bench(
    unit: str,
    source: str,
    parameters: Mapping[str, int],
    cache: Path,
    *,
    defines: Mapping[str, int] | None = None,
    rtl: list[Path] | None = None,
) -> Path:
    """Returns the compiled bench, made if it is not in ``cache``.

    Args:
        unit: the module.
        source: the bench's file in ``hw/tb/units``.
        parameters: of the module.
        cache: folder.
        defines: macros of the bench.
        rtl: the module's sources, which may be worth warnings; if left out those of the checkout,
            which may not.
    """
    verilator, compiler = find_verilator(), find_compiler()
    warnings = "-Wall" if rtl is None else "-Wno-fatal"
    rtl = needed_files(unit) if rtl is None else rtl
    benches = hardware_folder("tb") / "units"
    bench = benches / source
    folder = cache / digest(
        [*rtl, bench, *sorted(benches.glob("*.h"))], unit, sorted(parameters.items())
    )
    binary = folder / "bench"
    if binary.exists():
        return binary
    folder.mkdir(parents=True, exist_ok=True)
    arguments = [f"-G{name}={value}" for name, value in parameters.items()]
    arguments += ["--top-module", unit, "--Mdir", str(folder)]
    # Unset values are random, so that none of them may matter.
    arguments += ["--x-initial", "unique", "--x-assign", "unique"]
    command = verilator.command("--cc", warnings, "-O3", "--quiet", *arguments, *map(str, rtl))
    subprocess.run(command, check=True)
    sources = [*sorted(folder.glob("*.cpp")), bench]
    sources += [verilator.include / f"verilated{part}.cpp" for part in ("", "_threads")]
    whole = folder / "whole.cc"
    whole.write_text("".join(f'#include "{path}"\n' for path in sources))
    includes = [f"-I{path}" for path in (folder, verilator.include, benches)]
    options = ["-std=c++17", "-O1", "-w", "-pthread"]
    options += [f"-D{name}={value}" for name, value in (defines or {}).items()]
    subprocess.run([compiler.path, *options, *includes, str(whole), "-o", str(binary)], check=True)
    return binary


def run_bench(binary: Path, cases: list[NDArray[np.uint32]]) -> NDArray[np.uint32]:
    """Returns the words that a bench writes for the words of some cases."""
    given, results = binary.with_name("in"), binary.with_name("out")
    given.write_bytes(b"".join(words.tobytes() for words in cases))
    subprocess.run([binary, given, results], check=True, timeout=900)
    return np.fromfile(results, np.uint32)
