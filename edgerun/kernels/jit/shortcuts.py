"""What Numba does for functions of others, left out while it translates kernels.

Kernels are called by nobody but native code, take numbers alone, and go through LLVM once, when all
that they call is together. Behind that (``no_machine_code``) nothing here changes a byte of their
code, as ``tests/kernels/jit/test_shortcuts.py`` shows. Methods of Numba's are replaced while its
own lock is held and put back, so functions of others are compiled as ever.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from types import SimpleNamespace
from typing import Any

from numba.core import inline_closurecall, transforms, types
from numba.core.codegen import JITCodeLibrary
from numba.core.lowering import Lower
from numba.core.postproc import PostProcessor, VariableLifetime
from numba.core.typing.context import BaseContext

from edgerun.collector import collector_paused

# What Numba does with each function that is called, before all are optimised together: a fifth of
# the time, and code is no faster for it in the end.
_FOR_EXECUTION = ("_optimize_functions", "_optimize_final_module", "_finalize_specific")
_OPERATORS = frozenset(getattr(operator, name) for name in operator.__all__)
_SIGNATURES: dict[tuple[Any, tuple[Any, ...]], Any] = {}  # by operator and types


@contextmanager
def shortcuts(target: Any) -> Iterator[None]:
    """Takes all of them.

    Args:
        target: Numba's context of the processor.
    """
    with ExitStack() as stack:
        for each in (
            no_machine_code(target),
            _no_wrappers(),
            _no_copies(),
            _no_lifetimes(),
            _operators_once(),
            collector_paused(),  # Numba makes millions of objects that live until it is done
        ):
            stack.enter_context(each)
        yield


@contextmanager
def _replaced(owner: Any, **methods: Any) -> Iterator[None]:
    """A class with other methods."""
    before = {name: getattr(owner, name) for name in methods}
    for name, method in methods.items():
        setattr(owner, name, method)
    try:
        yield
    finally:
        for name, method in before.items():
            setattr(owner, name, method)


@contextmanager
def no_machine_code(target: Any) -> Iterator[None]:
    """Keeps Numba from optimising and translating functions one by one, as if to call them."""
    nothing = dict.fromkeys(_FOR_EXECUTION, lambda library, *modules: None)
    # Nor must its engine translate them later, with the next function that is called from Python.
    target.codegen()._add_module = lambda module: None
    # It wants a built-in function for each, no two of them the same; nobody calls them.
    target.get_executable = lambda *parts: dict[Any, Any]().__getitem__
    try:
        with _replaced(JITCodeLibrary, **nothing):
            yield
    finally:
        del target.codegen()._add_module
        del target.get_executable


def _no_wrappers() -> AbstractContextManager[None]:
    """Leaves out the functions by which Python would call each function."""
    return _replaced(Lower, create_cpython_wrapper=lambda lower, *options: None)


@contextmanager
def _no_copies() -> Iterator[None]:
    """Keeps Numba from copying a function twice where it puts it in the place of a call.

    It has just translated it for this call, and nobody else has it; copying took a tenth of the
    time. What it inlines otherwise, overloads with types, others may have as well.
    """
    inline_function = inline_closurecall.InlineWorker.inline_function

    def inline(*args: Any, **named: Any) -> Any:
        copies = inline_closurecall.copy
        inline_closurecall.copy = SimpleNamespace(deepcopy=lambda block: block)
        try:
            return inline_function(*args, **named)
        finally:
            inline_closurecall.copy = copies

    with _replaced(inline_closurecall.InlineWorker, inline_function=inline):
        yield


def _no_lifetimes() -> AbstractContextManager[None]:
    """Keeps Numba from working out which variables live at the beginning of each block.

    It does so after every step that may have changed anything; code for the interpreter and
    generators need it, which kernels have not.
    """
    whole = PostProcessor.run

    def run(self: Any, emit_dels: bool = False, extend_lifetimes: bool = False) -> None:
        function = self.func_ir
        if function.is_generator:
            whole(self, emit_dels, extend_lifetimes)
            return
        function.blocks = transforms.canonicalize_cfg(function.blocks)
        function.variable_lifetime = VariableLifetime(function.blocks)
        function.generator_info = None
        if emit_dels:
            self._insert_var_dels(extend_lifetimes=extend_lifetimes)

    return _replaced(PostProcessor, run=run)


def _operators_once() -> AbstractContextManager[None]:
    """Keeps what operators give for operands of some types.

    Numba asks all that was declared for an operator anew each time, all of NumPy's loops first.
    """
    resolve = BaseContext.resolve_function_type

    def resolved(context: Any, function: Any, operands: Any, named: Any) -> Any:
        is_operator = type(function) is types.Function and function.typing_key in _OPERATORS
        if not is_operator or named:
            return resolve(context, function, operands, named)
        key = (function.typing_key, tuple(operands))
        signature = _SIGNATURES.get(key)
        if signature is None:
            signature = _SIGNATURES[key] = resolve(context, function, operands, named)
        return signature

    return _replaced(BaseContext, resolve_function_type=resolved)
