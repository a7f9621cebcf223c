"""Loads object code into the process, without Numba and where possible without LLVM.

LLVM's library is 170 MB, most of which is read from the disk when the first object is loaded;
it is left to compilers, and to machines whose object files ``elf.py`` does not understand.
"""

from __future__ import annotations

import logging
import platform
from typing import Any

from edgerun.kernels.host.code_memory import library_address, place
from edgerun.kernels.jit.elf import UnknownObjectError, read_image
from edgerun.kernels.jit.target import ENTRY, target_machine

logger = logging.getLogger(__name__)

# Engines own the memory of the code they loaded. Worker threads may be inside that code until
# the very end of the process, so engines are never released.
_ENGINES: list[Any] = []


def load_object(data: bytes) -> int:
    """Links an object made by ``compile_object``; returns the address of its entry."""
    try:
        image = read_image(data, ENTRY, platform.machine())
        start = place(len(image.content), lambda address: image.at(address, library_address))
        return start + image.entry
    except (UnknownObjectError, OSError) as error:
        logger.debug("LLVM is to load a kernel: %s", error)
        return load_by_llvm(data)


def load_by_llvm(data: bytes) -> int:
    """Like ``load_object``, for any kind of object file that LLVM writes."""
    from llvmlite import binding

    engine = binding.create_mcjit_compiler(binding.parse_assembly(""), target_machine())
    engine.add_object_file(binding.ObjectFileRef.from_data(data))
    engine.finalize_object()
    address = int(engine.get_function_address(ENTRY))
    _ENGINES.append(engine)
    return address
