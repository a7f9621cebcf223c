"""Calls of kernels in a program, and where a program must wait."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from edgerun.kernels.jit.service import compiled


class Code(Protocol):
    """Native code."""

    @property
    def address(self) -> int: ...


@dataclass(frozen=True, slots=True)
class Loaded:
    """Native code whose address is known."""

    address: int


@dataclass(frozen=True, slots=True)
class Instruction:
    """One kernel call.

    Attributes:
        code: the kernel, perhaps still to be compiled.
        arguments: int64 block that the kernel reads; kept alive by the program.
        fields: names of the arguments.
        size: index into the frame of the quantity that decides the number of chunks.
        times: chunks per unit of that quantity before division.
        divide: units per chunk; chunks = ceil(frame[size] * times / divide), below 2**24.
        reads: names of buffers it reads.
        writes: names of buffers it writes.
        label: for traces.
        at_once: most chunks that a thread takes at once, of which there are many and short ones.
    """

    code: Code
    arguments: NDArray[np.int64]
    fields: tuple[str, ...]
    size: int
    times: int
    divide: int
    reads: frozenset[str]
    writes: frozenset[str]
    label: str
    at_once: int = 1

    @property
    def function(self) -> int:
        """Address of the compiled kernel; waits for the compiler."""
        return self.code.address


def instruction(
    name: str,
    *,
    params: dict[str, Any],
    fields: dict[str, int],
    chunks: tuple[int, int, int],
    reads: set[str],
    writes: set[str],
    label: str = "",
    at_once: int = 1,
) -> Instruction:
    """Binds a kernel to its arguments.

    Args:
        name: of a kernel.
        params: compile-time constants.
        fields: value of every argument of the kernel.
        chunks: ``(size, times, divide)`` as in ``Instruction``.
        reads: names of buffers it reads.
        writes: names of buffers it writes.
        label: for traces.
        at_once: as in ``Instruction``.

    Raises:
        KeyError: no such kernel, or ``fields`` are not its arguments.
    """
    code = compiled(name, **params)
    names = code.signature.names
    if set(names) != set(fields):
        raise KeyError(f"kernel {name} takes {names}, got {tuple(fields)}")
    block: NDArray[np.int64] = np.array([fields[name] for name in names], np.int64)
    return Instruction(
        code=code,
        arguments=block,
        fields=names,
        size=chunks[0],
        times=chunks[1],
        divide=chunks[2],
        reads=frozenset(reads),
        writes=frozenset(writes),
        label=label or name,
        at_once=at_once,
    )


def last_of_group(instructions: Sequence[Instruction]) -> list[int]:
    """For each instruction the next one, or itself, after which all threads wait."""
    result, last = [], len(instructions) - 1
    for index, waits in reversed(list(enumerate(fences(instructions)))):
        last = index if waits else last
        result.append(last)
    return result[::-1]


def fences(instructions: Sequence[Instruction]) -> list[bool]:
    """Whether each instruction must be complete, with all before it, before the next starts."""
    result = [False] * len(instructions)
    reads: set[str] = set()
    writes: set[str] = set()
    for index, step in enumerate(instructions):
        if step.reads & writes or step.writes & (reads | writes):
            result[index - 1] = True
            reads, writes = set(), set()
        reads |= step.reads
        writes |= step.writes
    if result:
        result[-1] = True
    return result
