"""Keeps what is generated from the register description up to date.

From ``registers.toml`` come the SystemVerilog package, the driver's constants, the hardware
description that pynq reads and the documentation; from the definitions of attention and glue their
tables::

    python -m edgerun_hw.registers --check     # 1 when a generated file differs
    python -m edgerun_hw.registers --write
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from edgerun_hw.registers.description import Description, read_description
from edgerun_hw.registers.hwh import write_hwh
from edgerun_hw.registers.markdown import write_markdown
from edgerun_hw.registers.python import write_python
from edgerun_hw.registers.systemverilog import write_systemverilog
from edgerun_hw.registers.tables import write_exp2, write_reciprocals

PACKAGE = Path(__file__).resolve().parents[1]


def generated_files() -> dict[Path, Callable[[Description], str]]:
    """Paths of the generated files and what writes them.

    In an installed package there is no checkout around: only files of the package are listed.
    """
    files: dict[Path, Callable[[Description], str]] = {
        PACKAGE / "overlay" / "register_map.py": write_python,
        PACKAGE / "simulate" / "board" / "tlmm.hwh": write_hwh,
    }
    checkout = PACKAGE.parents[1]
    rtl = checkout / "hw" / "rtl"
    if rtl.is_dir():
        files[rtl / "common" / "tlmm_pkg.sv"] = write_systemverilog
        files[rtl / "common" / "tlmm_exp2.sv"] = write_exp2
        files[rtl / "glue" / "tlmm_glue_reciprocal.sv"] = write_reciprocals
        files[checkout / "docs" / "fpga-registers.md"] = write_markdown
    return files


def stale_files() -> list[Path]:
    """Generated files that are missing or differ from what the description says."""
    description = read_description()
    return [
        path
        for path, write in generated_files().items()
        if not path.is_file() or path.read_text(encoding="utf-8") != write(description)
    ]


def main(arguments: Sequence[str]) -> int:
    """Runs ``--check`` or ``--write``; returns the exit status."""
    if list(arguments) == ["--write"]:
        description = read_description()
        for path, write in generated_files().items():
            path.write_text(write(description), encoding="utf-8")
        return 0
    if list(arguments) != ["--check"]:
        sys.stderr.write("usage: python -m edgerun_hw.registers --check | --write\n")
        return 2
    stale = stale_files()
    for path in stale:
        sys.stderr.write(f"{path} differs from registers.toml: run with --write\n")
    return 1 if stale else 0
