"""What slang says of the RTL: a reader of SystemVerilog that keeps to IEEE 1800-2023.

Verilator takes names that are used above their declaration, which Vivado refuses.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from edgerun.errors import MissingDependencyError
from edgerun_hw.build.project import TOP
from edgerun_hw.build.sources import wrapped_rtl_files
from edgerun_hw.overlay.geometry import Geometry

SEVERITIES = {"Warning": "warning", "Error": "error", "Fatal": "error"}


def complaints(geometry: Geometry) -> list[str]:
    """Warnings and errors about the overlay, elaborated with a geometry.

    Raises:
        MissingDependencyError: there is no slang.
    """
    return elaborate(wrapped_rtl_files(), TOP, geometry.parameters())


def elaborate(files: Iterable[Path], top: str, parameters: Mapping[str, int]) -> list[str]:
    """Warnings and errors, each with its file and line.

    Args:
        files: sources, in the order in which they need each other.
        top: the module to elaborate.
        parameters: of that module.

    Raises:
        MissingDependencyError: there is no slang.
    """
    if find_spec("pyslang") is None:
        raise MissingDependencyError(
            "reading the RTL with slang needs pyslang: pip install 'edgerun[fpga]'"
        )
    from pyslang import driver

    slang = driver.Driver()
    slang.addStandardArgs()
    settings = [f"-G{name}={value}" for name, value in parameters.items()]
    slang.parseCommandLine(shlex.join(["slang", "--top", top, *settings, *map(str, files)]))
    slang.processOptions()
    slang.parseAllSources()
    return list(_shown(slang, slang.createCompilation()))


def _shown(slang: Any, compilation: Any) -> Iterator[str]:
    engine, sources = slang.diagEngine, slang.sourceManager
    for diagnostic in compilation.getAllDiagnostics():
        place = diagnostic.location
        severity = engine.getSeverity(diagnostic.code, place).name
        if severity in SEVERITIES:
            file = Path(sources.getFileName(place)).name
            line = sources.getLineNumber(place)
            text = engine.formatMessage(diagnostic)
            yield f"{file}:{line}: {SEVERITIES[severity]}: {text}"
