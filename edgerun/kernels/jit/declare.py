"""Declares what can be compiled: kernels, and a few functions of numbers.

A kernel is made by a factory that takes compile-time constants (strings and integers) and
returns a plain function ``body(arguments, chunk)``. ``@kernel("name", "rows:i64[1] ...")``
declares the factory and the arguments (``lang/signature.py``), which the body reads by name.
Declaring is enough to be compiled, kept on disk and covered by the conformance suite.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias, TypeVar

from numba import types

from edgerun.kernels.lang.argument_block import ArgumentBlock
from edgerun.kernels.lang.signature import IMPLIED, Signature, signature


class Arguments(Protocol):
    """The argument block that a kernel's body reads: ``a.width`` is the word of that name."""

    def __getattr__(self, name: str) -> int: ...


Body: TypeAlias = Callable[[Arguments, int], None]
Factory: TypeAlias = Callable[..., Body]
Function = TypeVar("Function", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class Declared:
    """Something that can be compiled.

    Attributes:
        make: takes compile-time constants, returns the function to be compiled.
        types: of the function's arguments.
        arguments: of a kernel, as declared; empty for other functions.
        returns: whether the function returns an int64.
    """

    make: Callable[..., Callable[..., Any]]
    types: tuple[Any, ...]
    arguments: str = ""
    returns: bool = False

    @property
    def signature(self) -> Signature:
        """The arguments of a kernel."""
        return signature(self.arguments)


KERNELS: dict[str, Declared] = {}
FUNCTIONS: dict[str, Declared] = {}


def kernel(name: str, arguments: str) -> Callable[[Factory], Factory]:
    """Declares a kernel.

    Raises:
        ValueError: the arguments are not declared as they should be, or nothing says the size of
            an array.
    """
    declared = signature(arguments)
    block = ArgumentBlock(declared.names)

    def register(make: Factory) -> Factory:
        numbers = {*declared.names, *inspect.signature(make).parameters}
        if unknown := declared.sizes - (numbers - declared.memory) - IMPLIED:
            raise ValueError(f"kernel {name}: nothing says what {', '.join(sorted(unknown))} is")
        KERNELS[name] = Declared(make, (block, types.intp), arguments)
        return make

    return register


def function(name: str, *, returns: bool) -> Callable[[Function], Function]:
    """Declares a function of int64 numbers that is no kernel."""

    def register(body: Function) -> Function:
        count = len(inspect.signature(body).parameters)
        FUNCTIONS[name] = Declared(lambda: body, (types.intp,) * count, returns=returns)
        return body

    return register
