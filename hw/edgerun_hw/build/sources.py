"""Where the files of the overlay lie that are no Python: RTL, test bench, boards."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path

from edgerun.errors import InputError

PACKAGE = Path(__file__).resolve().parents[1]
# The package that the others need comes first: compilers read files in the order given.
RTL_FIRST = ("tlmm_pkg.sv",)


def hardware_folder(name: str) -> Path:
    """Returns the folder ``hw/<name>`` of the checkout, or its copy inside an installed wheel.

    Args:
        name: ``rtl``, ``tb`` or ``boards``.

    Raises:
        InputError: this installation came without it.
    """
    candidates = (PACKAGE.parent / name, PACKAGE / "_hardware" / name)
    for folder in candidates:
        if folder.is_dir():
            return folder
    raise InputError(
        f"the folder hw/{name} is missing from this installation of edgerun: "
        f"looked for {' and '.join(map(str, candidates))}; install from a checkout or a full wheel"
    )


def rtl_files() -> list[Path]:
    """Returns the SystemVerilog sources of the overlay, in the order compilers need."""
    folder = hardware_folder("rtl")
    files = sorted(folder.rglob("*.sv"), key=lambda file: (file.name not in RTL_FIRST, file.name))
    if not files:
        raise InputError(f"there is no .sv file in {folder}")
    return files


def wrapped_rtl_files() -> list[Path]:
    """Returns the sources of the overlay as Vivado takes it, its top in plain Verilog last."""
    return [*rtl_files(), hardware_folder("rtl") / "shell" / "tlmm_wrapper.v"]


def digest(files: Iterable[Path], *parts: object) -> str:
    """Returns a hexadecimal name for what these files and settings produce.

    Args:
        files: sources; their names and contents count, not where they lie.
        parts: whatever else the result depends on; their ``repr`` counts.
    """
    sha = hashlib.sha256()
    for file in files:
        data = file.read_bytes()
        sha.update(f"{file.name}\0{len(data)}\0".encode())
        sha.update(data)
    for part in parts:
        sha.update(f"{part!r}\0".encode())
    return sha.hexdigest()[:32]
