"""Verilates a design with the harness of ``hw/tb`` and compiles both into one shared library.

Made once and kept in edgerun's cache, under a name that is the digest of all that the library
depends on: sources, parameters, options, and the versions of the tools. A library appears there
whole or not at all, and of two processes that want the same one only one compiles.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import logging
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from edgerun import env
from edgerun.errors import BackendError, StorageError
from edgerun.files.private import (
    advice,
    open_private,
    private_folder,
    read_private,
    write_atomically,
)
from edgerun.kernels.host.cores import cores
from edgerun_hw.build.sources import digest, hardware_folder, wrapped_rtl_files
from edgerun_hw.overlay.geometry import Geometry
from edgerun_hw.simulate.toolchain import Compiler, Verilator, find_compiler, find_verilator

logger = logging.getLogger(__name__)

Progress = Callable[[str], None]

LIBRARY = "overlay.so"
FOLDER = "simulators"
MAX_LIBRARY_BYTES = 1 << 30
MAX_SEAL_BYTES = 1 << 10
KEPT = 24  # libraries; the least recently used go
TRACES = ("none", "vcd")  # FST would need headers of lz4 and zlib
WRAPPED = ("axi_address_rules.sv", "tlmm_wrapped.sv")
HARNESS_SOURCES = ("api.cpp", "harness.cpp")
VERILATOR_OPTIONS = (
    *("--cc", "-O3", "--assert", "--no-timing", "--quiet"),
    *("--x-assign", "unique", "--x-initial", "unique"),
    # Lint is a check of its own (`edgerun fpga check`); here only errors count.
    *("-Wno-lint", "-Wno-style", "-Wno-fatal"),
)
COMPILER_OPTIONS = ("-std=c++17", "-fPIC", "-fvisibility=hidden", "-pthread")
DEFINES = (
    *("VL_USER_FATAL", "VL_USER_STOP", "VL_USER_FINISH", "VL_TIME_CONTEXT"),
    # A failed assertion is a violation that the simulator lists; it prints nothing.
    "VL_PRINTF(...)=static_cast<void>(0)",
)


@dataclass(frozen=True)
class Design:
    """What is verilated: a module with the ports of ``tlmm_top``.

    Attributes:
        top: name of the module.
        sources: SystemVerilog files, packages first.
        geometry: values of its parameters.
    """

    top: str
    sources: tuple[Path, ...]
    geometry: Geometry


@dataclass(frozen=True)
class Variant:
    """What a simulator can do besides simulating; each costs speed.

    Attributes:
        trace: ``none`` or ``vcd``: whether waveforms can be written.
        coverage: count executed lines and toggled bits.

    Raises:
        ValueError: ``trace`` is none of these.
    """

    trace: str = "none"
    coverage: bool = False

    def __post_init__(self) -> None:
        if self.trace not in TRACES:
            raise ValueError(f"trace must be one of {', '.join(TRACES)}, not {self.trace!r}")

    @property
    def verilator_options(self) -> tuple[str, ...]:
        """Options of Verilator."""
        trace = ("--trace-vcd",) if self.trace == "vcd" else ()
        coverage = ("--coverage-line", "--coverage-toggle") if self.coverage else ()
        return (*trace, *coverage)

    @property
    def defines(self) -> tuple[str, ...]:
        """Macros of the runtime and the harness."""
        traces = ("VM_TRACE=1", "VM_TRACE_VCD=1", "EDGERUN_TRACE_VCD")
        trace = traces if self.trace == "vcd" else ()
        return (*trace, *(("VM_COVERAGE=1",) if self.coverage else ()))

    @property
    def optimisation(self) -> str:
        """Option of the compiler; code that also records is large and seldom runs for long."""
        if self.coverage:
            return "-O0"
        return "-O2" if self.trace == "none" else "-O1"

    @property
    def runtime_sources(self) -> tuple[str, ...]:
        """Files of Verilator's runtime."""
        trace = ("verilated_vcd_c.cpp",) if self.trace == "vcd" else ()
        coverage = ("verilated_cov.cpp",) if self.coverage else ()
        return ("verilated.cpp", "verilated_threads.cpp", *trace, *coverage)


def overlay_design(geometry: Geometry) -> Design:
    """Returns the overlay as Vivado builds it, in this geometry, with rules on its AXI ports."""
    bench = [hardware_folder("tb") / "wrapped" / name for name in WRAPPED]
    return Design("tlmm_wrapped", (*wrapped_rtl_files(), *bench), geometry)


def standin_design(geometry: Geometry) -> Design:
    """Returns the module by which the harness itself is tested (``hw/tb/standin.sv``)."""
    return Design("standin", (hardware_folder("tb") / "standin.sv",), geometry)


def build(
    design: Design,
    variant: Variant | None = None,
    *,
    cache: Path | None = None,
    progress: Progress | None = None,
) -> Path:
    """Returns the shared library of ``design``, made if it is not in the cache.

    Args:
        design: what to simulate.
        variant: traces and coverage; neither by default.
        cache: folder to keep libraries in; edgerun's cache by default.
        progress: told in a few words what is being done, when something is.

    Raises:
        MissingDependencyError: Verilator or a C++ compiler is not installed.
        BackendError: one of them failed; the message has its first complaint.
        StorageError: the cache cannot be written.
    """
    variant = variant or Variant()
    verilator, compiler = find_verilator(), find_compiler()
    harness = sorted(hardware_folder("tb").glob("*.h"))
    harness += [hardware_folder("tb") / name for name in HARNESS_SOURCES]
    speed = variant.optimisation
    tools = (verilator.version, compiler.version)
    options = (VERILATOR_OPTIONS, COMPILER_OPTIONS, speed, DEFINES, tools)
    parameters = sorted(design.geometry.parameters().items())
    name = digest([*design.sources, *harness], design.top, parameters, variant, options)
    folder = (cache or env.settings().cache_dir) / FOLDER
    library = folder / name / LIBRARY
    try:
        private_folder(private_folder(folder) / name)
        if _use(library):
            return library
        with _locked(folder, name):
            if not _use(library):
                job = _Job(design, variant, verilator, compiler, progress or logger.info)
                job.run(library)
                _seal(library)
                _forget_old(folder)
    except OSError as error:
        raise StorageError(
            f"the simulator cannot be kept in {folder} ({error.strerror or error}): make room, or "
            f"{advice(error)}"
        ) from error
    return library


@dataclass(frozen=True)
class _Job:
    """One compilation."""

    design: Design
    variant: Variant
    verilator: Verilator
    compiler: Compiler
    progress: Progress

    def run(self, library: Path) -> None:
        with tempfile.TemporaryDirectory(dir=library.parent, prefix="build-") as work:
            folder = Path(work)
            self.progress(f"verilating {self.design.top}")
            self._verilate(folder)
            self.progress("compiling the simulator (once; it is kept)")
            units = self._write_units(folder)
            with ThreadPoolExecutor(cores().usable) as pool:
                runtime = pool.submit(self._runtime, library.parent.parent, folder)
                objects = [*pool.map(self._compile, units), runtime.result()]
            shared = folder / LIBRARY
            link = [self.compiler.path, "-shared", "-pthread", "-Wl,-Bsymbolic", "-o", str(shared)]
            _call([*link, *map(str, objects)], "link")
            _move(shared, library)

    def _verilate(self, folder: Path) -> None:
        parameters = self.design.geometry.parameters().items()
        command = self.verilator.command(
            *VERILATOR_OPTIONS,
            *self.variant.verilator_options,
            *("--prefix", "Voverlay", "--top-module", self.design.top, "--Mdir", str(folder)),
            *(f"-G{name}={value}" for name, value in parameters),
            *map(str, self.design.sources),
        )
        _call(command, "verilate")

    def _write_units(self, folder: Path) -> list[Path]:
        """Gathers the sources into as many files as are worth compiling at once."""
        generated = sorted(folder.glob("Voverlay*.cpp"), key=lambda file: -file.stat().st_size)
        tb = hardware_folder("tb")
        units = {
            "model": [file for file in generated if "Slow" not in file.name],
            "slow": [file for file in generated if "Slow" in file.name],
            "harness": [tb / name for name in HARNESS_SOURCES],
        }
        return [_write_unit(folder, name, sources) for name, sources in units.items()]

    def _runtime(self, cache: Path, folder: Path) -> Path:
        """Returns Verilator's runtime, which all designs of a variant share."""
        versions = (self.verilator.version, self.compiler.version, COMPILER_OPTIONS, DEFINES)
        cached = cache / f"runtime-{digest([], self.variant, versions)}.o"
        if not _is_private(cached):
            sources = [self.verilator.include / name for name in self.variant.runtime_sources]
            _move(self._compile(_write_unit(folder, "runtime", sources)), cached)
        return cached

    def _compile(self, unit: Path) -> Path:
        geometry = self.design.geometry
        sizes = (f"EDGERUN_PORTS={geometry.ports}", f"EDGERUN_ADDR_BITS={geometry.addr_bits}")
        include = self.verilator.include
        folders = (unit.parent, include, include / "vltstd", hardware_folder("tb"))
        output = unit.with_suffix(".o")
        slow = unit.stem == "unit_slow"
        optimisation = "-O0" if slow else self.variant.optimisation
        command = [self.compiler.path, *COMPILER_OPTIONS, optimisation]
        if self.compiler.is_gcc:
            # Statics of templates would otherwise be shared between libraries of a process.
            command.append("-fno-gnu-unique")
        command += [f"-D{define}" for define in (*DEFINES, *self.variant.defines, *sizes)]
        for folder in folders:
            command += ["-isystem", str(folder)]
        _call([*command, "-c", str(unit), "-o", str(output)], "compile")
        return output


def _write_unit(folder: Path, name: str, sources: list[Path]) -> Path:
    path = folder / f"unit_{name}.cpp"
    path.write_text("".join(f'#include "{source}"\n' for source in sources), "utf-8")
    return path


def _call(command: list[str], what: str) -> None:
    answer = subprocess.run(command, capture_output=True, text=True, check=False)
    if answer.returncode == 0:
        return
    text = answer.stdout + answer.stderr
    logger.debug("%s\n%s", " ".join(command), text)
    lines = [line for line in text.splitlines() if "error" in line.lower()]
    reason = lines[0].strip() if lines else f"exit status {answer.returncode}"
    raise BackendError(
        f"the simulator could not be made, its sources do not {what}: {reason} "
        "(EDGERUN_DEBUG=1 shows everything)"
    )


def _seal(library: Path) -> None:
    """Writes the library's digest beside it: loading a damaged one would end the process."""
    write_atomically(library.with_suffix(".sha256"), _sha256(library).encode())


def _use(library: Path) -> bool:
    """Whether the library is there, whole and nobody else's; marks it as used."""
    try:
        seal = read_private(library.with_suffix(".sha256"), MAX_SEAL_BYTES)
        if seal != _sha256(library).encode():
            logger.warning("%s is damaged; it is made again", library)
            return False
    except FileNotFoundError:
        return False
    except OSError as error:
        logger.warning("%s is made again: %s", error.filename or library, error.strerror)
        return False
    with contextlib.suppress(OSError):  # the cache may be read-only
        os.utime(library)
    return True


def _move(built: Path, target: Path) -> None:
    built.chmod(0o700)  # a compiler leaves it as writable as the user's umask says
    os.replace(built, target)


def _is_private(file: Path) -> bool:
    try:
        os.close(open_private(file))
    except OSError:
        return False
    return True


def _sha256(library: Path) -> str:
    return hashlib.sha256(read_private(library, MAX_LIBRARY_BYTES)).hexdigest()


@contextlib.contextmanager
def _locked(folder: Path, name: str) -> Iterator[None]:
    with open(folder / f"{name}.lock", "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _forget_old(folder: Path) -> None:
    libraries = sorted(folder.glob(f"*/{LIBRARY}"), key=_age)
    for library in libraries[:-KEPT]:
        shutil.rmtree(library.parent, ignore_errors=True)
        (folder / f"{library.parent.name}.lock").unlink(missing_ok=True)


def _age(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0
