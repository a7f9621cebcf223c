"""Arguments of kernels: what they are called, and how much memory each may touch.

A kernel declares them once, as text, in the order of the int64 words that it is called with::

    rows:i64[1] x:f32[rows, width; x_stride] x_stride bias?:f32[width] page_table:cache width

- ``width`` is a number;
- ``x:f32[a, b]`` is the address of an array, of which no more than that is touched;
- ``[a, b; stride]`` is an array whose first axis has elements ``stride`` apart;
- ``bias?`` may be absent, which 0 stands for;
- ``:cache`` is filled in when a cache is bound.

Sizes are expressions of numbers: of arguments, of compile-time constants, of ``rows``, the most
rows that a batch can have, and of ``chunks``, for kernels that are called without a program.
Whoever binds a kernel compares what it touches with the memory there, so that a mistake further
up is an error and not a stray write. The module imports nothing that compiles.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from types import CodeType

ITEM_BYTES = {"i8": 1, "u8": 1, "i16": 2, "i32": 4, "f32": 4, "f64": 8, "i64": 8}
IMPLIED = frozenset({"rows", "chunks"})
_FUNCTIONS = {"max": max}
_ARRAY = rf"({'|'.join(ITEM_BYTES)})\[([\w\s,+*/()-]+)(?:;\s*(\w+))?\]"
_ARGUMENT = re.compile(rf"(\w+)(\?)?(?::(?:(cache)|{_ARRAY}))?(?:\s+|$)")
_COMMA = re.compile(r",(?![^(]*\))")  # outside parentheses


@dataclass(frozen=True, slots=True)
class Signature:
    """The arguments of a kernel.

    Attributes:
        names: in order.
        memory: those that are addresses of arrays.
        optional: those of them that may be 0.
        cached: those that are filled in when a cache is bound.
    """

    names: tuple[str, ...]
    memory: frozenset[str]
    optional: frozenset[str]
    cached: frozenset[str]
    _extents: CodeType

    @property
    def sizes(self) -> frozenset[str]:
        """Names that say how much memory is touched."""
        return frozenset(self._extents.co_names) - _FUNCTIONS.keys()

    def touched(self, sizes: Mapping[str, int]) -> dict[str, int]:
        """Bytes of each array that the kernel may touch.

        Args:
            sizes: the numbers among its arguments, its compile-time constants, and what is implied.

        Raises:
            NameError: a size is missing.
        """
        extents: dict[str, int] = eval(self._extents, _FUNCTIONS | {"__builtins__": {}}, sizes)
        return extents


@cache
def signature(text: str) -> Signature:
    """Reads a declaration.

    Raises:
        ValueError: it is not of the form above, or says a name twice.
    """
    if not re.fullmatch(f"(?:{_ARGUMENT.pattern})*", text.strip()):
        raise ValueError(f"not a kernel's arguments: {text}")
    arguments = _ARGUMENT.findall(text.strip())
    names = tuple(name for name, *_ in arguments)
    if len(set(names)) < len(names):
        raise ValueError(f"an argument is declared twice: {text}")
    extents = {
        name: _extent(ITEM_BYTES[kind], _COMMA.split(shape), stride)
        for name, _, _, kind, shape, stride in arguments
        if kind
    }
    code = ", ".join(f"'{name}': {extent}" for name, extent in extents.items())
    return Signature(
        names,
        frozenset(extents),
        frozenset(name for name, optional, *_ in arguments if optional),
        frozenset(name for name, _, cached, *_ in arguments if cached),
        compile(f"{{{code}}}", "<arguments>", "eval"),
    )


def _extent(item: int, shape: Iterable[str], stride: str) -> str:
    """The expression of an array's bytes; of the last row no more than its width counts."""
    first, *rest = (f"({size.strip()})" for size in shape)
    width = " * ".join(rest) or "1"
    return (
        f"{item} * (({first} - 1) * {stride} + {width})"
        if stride
        else f"{item} * {first} * {width}"
    )
