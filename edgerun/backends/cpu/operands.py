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
from edgerun.kernels.lang.signature import Signature


class Later(Enum):
    """An address that is filled in when a cache is bound."""

    CACHE = 0


WITH_CACHE: Final = Later.CACHE
# A number, memory, nothing in place of an optional operand, or what comes later.
Argument: TypeAlias = "int | Buffer | NDArray[Any] | Later | None"


def checked_arguments(
    kernel: str,
    signature: Signature,
    arguments: Mapping[str, Argument],
    sizes: Mapping[str, Any],
) -> tuple[dict[str, int], list[NDArray[Any]]]:
    """Turns operands into addresses, after comparing their sizes with what the kernel touches.

    Args:
        kernel: its name.
        signature: its arguments.
        arguments: value of every one; memory for those that are addresses.
        sizes: what memory depends on beside them: ``rows``, the most rows of a batch, and the
            kernel's compile-time constants.

    Returns:
        values of the arguments, and the arrays that must be kept alive.

    Raises:
        BackendError: an operand is too small, absent or in pieces, or a number stands in its place.
    """
    values = (*sizes.items(), *arguments.items())
    numbers = {name: value for name, value in values if type(value) is int}
    missing = (signature.memory - arguments.keys()) | (signature.sizes - numbers.keys())
    if missing:
        raise BackendError(f"kernel {kernel} got nothing as {', '.join(sorted(missing))}")
    touched = signature.touched(numbers)
    fields: dict[str, int] = {}
    operands: list[NDArray[Any]] = []
    for name, argument in arguments.items():
        memory = argument.array if isinstance(argument, Buffer) else argument
        if isinstance(memory, np.ndarray) and name in touched:
            if not 0 <= touched[name] <= memory.nbytes or not memory.flags.c_contiguous:
                raise BackendError(
                    f"kernel {kernel} would touch {touched[name]} bytes of {name}, which has "
                    f"{memory.nbytes}: the program was not built; please report this model"
                )
            fields[name] = memory.__array_interface__["data"][0]
            operands.append(memory)
        elif isinstance(memory, int) and name not in touched:
            fields[name] = memory
        elif (memory is WITH_CACHE and name in signature.cached) or (
            memory is None and name in signature.optional
        ):
            fields[name] = 0
        else:
            expected = "memory" if name in touched else "a number"
            raise BackendError(f"kernel {kernel} got {memory!r} as {name}; expected {expected}")
    return fields, operands
