"""Compiles kernels for a processor that this machine may not have, and links them."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from edgerun.env import settings
from edgerun.kernels.jit.catalogue import kernels
from edgerun.kernels.jit.compiler import compile_module
from edgerun.kernels.jit.object_cache import Entry, ObjectCache
from edgerun.kernels.jit.sources import code_version
from edgerun.kernels.jit.target import ENTRY, target_machine

from .processors import Processor

HERE = Path(__file__).parent
PAGE = 4096
IMAGE = 0x200000  # where the memory image lies; the header is its first page
RESET = 0xFFFF0000  # where the code of reset.S lies
# The addresses of the kernels come between the monitor and the code.
LINK = """
SECTIONS {{
  . = {start};
  .all : {{ *(.monitor) . = ALIGN({page}); *(.table) *(.text* .ltext* .rodata* .lrodata*)
            *(.data* .ldata* .bss* .lbss*) . = ALIGN({page}); }}
  /DISCARD/ : {{ *(*) }}
}}
"""
MONITOR_BYTES = PAGE


class Kernels:
    """Kernels by name and compile-time constants; compiled ones are kept on disk."""

    def __init__(self, processor: Processor, progress: Callable[[str], None]) -> None:
        self._machine = target_machine(processor.cpu, processor.features)
        root = settings().cache_dir / "emulate_isa" / processor.cpu
        self._cache = ObjectCache(root, f"{code_version()}{processor.features}")
        self._progress = progress
        self._objects: dict[str, bytes] = {}

    def number(self, name: str, params: dict[str, Any]) -> int:
        """The kernel's place in the table that ``link`` returns."""
        key = "-".join(
            [name, *(f"{parameter}={params[parameter]}" for parameter in sorted(params))]
        )
        if key not in self._objects:
            entry = self._cache.load(key)
            if entry is None:
                self._progress(key)
                entry = Entry(self._compile(key, name, params), kernels()[name].arguments)
                self._cache.save(key, entry)
            self._objects[key] = entry.code
        return list(self._objects).index(key)

    def link(self, folder: Path) -> tuple[bytes, list[int]]:
        """The image behind its header: monitor and kernels; and the address of each kernel."""
        files = [_assemble("monitor", folder)]
        for index, code in enumerate(self._objects.values()):
            files.append(folder / f"{index}.o")
            files[-1].write_bytes(code)
        table = folder / "table.S"
        entries = "\n".join(f".quad {_symbol(key)}" for key in self._objects)
        table.write_text(f'.section .table, "a"\n{entries}\n')
        files.append(folder / "table.o")
        _run("as", "-o", files[-1], table)
        start = IMAGE + PAGE
        script = folder / "link.ld"
        script.write_text(LINK.format(start=start, page=PAGE))
        files += _compiler_library()
        linked = _link(files, folder / "kernels.bin", "-T", script)
        addresses = np.frombuffer(linked, np.uint64, len(self._objects), MONITOR_BYTES)
        return linked, [int(address) for address in addresses]

    def _compile(self, key: str, name: str, params: dict[str, Any]) -> bytes:
        kernel = kernels()[name]
        module = compile_module(kernel.make(**params), kernel.types, self._machine)
        module.get_function(ENTRY).name = _symbol(key)
        return bytes(self._machine.emit_object(module))


def reset_code(folder: Path) -> Path:
    """The file with the code that the processor starts with."""
    path = folder / "reset.bin"
    _link([_assemble("reset", folder)], path, f"-Ttext={RESET:#x}", "-e", "0")
    return path


def _symbol(key: str) -> str:
    return "kernel_" + hashlib.sha256(key.encode()).hexdigest()[:16]


def _compiler_library() -> list[Path]:
    """GCC's helpers, where there are any; code for processors without half precision needs them."""
    if shutil.which("gcc") is None:
        return []
    command = ["gcc", "-print-libgcc-file-name"]
    return [
        Path(subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip())
    ]


def _assemble(name: str, folder: Path) -> Path:
    path = folder / f"{name}.o"
    _run("as", "--defsym", f"IMAGE={IMAGE}", "-o", path, HERE / f"{name}.S")
    return path


def _link(files: Sequence[Path], out: Path, *options: str | Path) -> bytes:
    """Links to a flat image of memory; whatever is not defined is an error."""
    _run("ld", "-static", "--no-warn-mismatch", "--oformat", "binary", "-o", out, *options, *files)
    return out.read_bytes()


def _run(*command: str | Path) -> None:
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{command[0]} failed: {done.stderr}")
