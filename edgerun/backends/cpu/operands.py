"""The second wall: no kernel is bound to memory that is smaller than what it touches.

``graph/check.py`` refuses models that do not fit together. What it or an emitter overlooks ends
here, because operands are passed as the arrays that they are and not as bare addresses.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from edgerun.backends.cpu.buffers import Buffer
from edgerun.errors import BackendError
from edgerun.kernels.extents import EXTENTS, OPTIONAL, Extent


class Later(Enum):
    """An address that is filled in when a cache is bound."""

    CACHE = 0


WITH_CACHE: Final = Later.CACHE
# A number, memory, nothing in place of an optional operand, or what comes later.
Argument: TypeAlias = "int | Buffer | NDArray[Any] | Later | None"


def checked_arguments(
    kernel: str,
    params: Mapping[str, Any],
    arguments: Mapping[str, Argument],
    sizes: Mapping[str, int],
    extents: Mapping[str, Extent] | None = None,
) -> tuple[dict[str, int], list[NDArray[Any]]]:
    """Turns operands into addresses, after comparing their sizes with what the kernel touches.

    Args:
        kernel: its name.
        params: its compile-time constants.
        arguments: value of every field; memory for those that are addresses.
        sizes: what else extents are computed from, ``rows`` above all.
        extents: bytes that the kernel touches by operand; None for those of
            ``kernels/extents.py``.

    Returns:
        values of the fields, and the arrays that must be kept alive.

    Raises:
        BackendError: an operand is too small, absent or in pieces, or a number stands in its place.
    """
    known = {
        name: value
        for name, value in (*params.items(), *arguments.items(), *sizes.items())
        if type(value) is int
    }
    extents = EXTENTS[kernel] if extents is None else extents
    fields: dict[str, int] = {}
    kept: list[NDArray[Any]] = []
    for name, argument in arguments.items():
        memory = argument.array if isinstance(argument, Buffer) else argument
        if isinstance(memory, np.ndarray) and name in extents:
            touched = extents[name](known)
            if not 0 <= touched <= memory.nbytes or not memory.flags.c_contiguous:
                raise BackendError(
                    f"kernel {kernel} would touch {touched} bytes of {name}, which has "
                    f"{memory.nbytes}: the program was not built; please report this model"
                )
            fields[name] = memory.__array_interface__["data"][0]
            kept.append(memory)
        elif isinstance(memory, int) and name not in extents:
            fields[name] = memory
        elif memory is WITH_CACHE or (memory is None and name in OPTIONAL):
            fields[name] = 0
        else:
            expected = "memory" if name in extents else "a number"
            raise BackendError(f"kernel {kernel} got {memory!r} as {name}; expected {expected}")
    missing = extents.keys() - arguments.keys()
    if missing:
        raise BackendError(f"kernel {kernel} got nothing as {', '.join(sorted(missing))}")
    return fields, kept
