"""Turns a kernel body into object code. Imports Numba, so it is imported only to compile.

The object has one symbol, ``ENTRY``, and refers to nothing but the C library: Numba's own entry
points, which report Python exceptions, are left out, since kernels raise none. Loading it again
(``loader.py``) therefore needs neither Numba nor its import time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from llvmlite import binding
from numba import types
from numba.core import compiler
from numba.core.compiler_lock import global_compiler_lock
from numba.core.registry import cpu_target

from edgerun.kernels.jit.shortcuts import shortcuts
from edgerun.kernels.jit.target import ENTRY, target_machine

PLAIN = (types.intp, types.intp)  # an address and a number
ENTRY_TEMPLATE = """
define {kind} @{entry}({args}) {{
  %result = alloca i64
  %error = alloca ptr
  %status = call i32 @"{inner}"(ptr %result, ptr %error, {args})
  {end}
}}
"""


def compile_object(
    body: Callable[..., Any], arguments: Sequence[Any] = PLAIN, *, returns: bool = False
) -> bytes:
    """Object code of ``body`` for this machine.

    Args:
        body: a function that Numba can compile.
        arguments: Numba's types of its arguments, each an int64.
        returns: whether it returns an int64 rather than nothing.
    """
    machine = target_machine()
    return bytes(machine.emit_object(compile_module(body, arguments, machine, returns=returns)))


def compile_module(
    body: Callable[..., Any], arguments: Sequence[Any], machine: Any, *, returns: bool = False
) -> Any:
    """The optimised LLVM module of ``body`` for a target machine."""
    compiled = _translate(body, arguments, types.int64 if returns else types.void)
    library = compiled.library
    module = binding.parse_assembly(
        library.get_llvm_str()
        + ENTRY_TEMPLATE.format(
            kind="i64" if returns else "void",
            entry=ENTRY,
            inner=compiled.fndesc.llvm_func_name,
            args=", ".join(f"i64 %a{index}" for index in range(len(arguments))),
            end="%value = load i64, ptr %result\n  ret i64 %value" if returns else "ret void",
        )
    )
    for helper in library._linking_libraries:
        module.link_in(helper._get_module_for_linking(), preserve=True)
    _drop_unused(module)
    passes = binding.create_pass_builder(
        machine, binding.create_pipeline_tuning_options(speed_level=3)
    )
    passes.getModulePassManager().run(module, passes)
    return module


def _translate(body: Callable[..., Any], arguments: Sequence[Any], result: Any) -> Any:
    """Numba's result up to unoptimised LLVM code.

    ``njit`` would go on to machine code, which takes as long again, and for which this machine
    may lack the instructions; so it would for functions that the body calls, one by one.
    """
    flags = compiler.Flags()
    flags.no_compile = flags.no_cpython_wrapper = flags.no_cfunc_wrapper = True
    flags.error_model = "numpy"
    typing, target = cpu_target.typing_context, cpu_target.target_context
    typing.refresh()
    target.refresh()
    with global_compiler_lock, shortcuts(target):
        return compiler.compile_extra(typing, target, body, tuple(arguments), result, flags, {})


def _drop_unused(module: Any) -> None:
    """Makes all but the entry internal, so that the optimiser removes what nothing calls."""
    for symbol in [*module.functions, *module.global_variables]:
        if not symbol.is_declaration and symbol.name != ENTRY:
            symbol.linkage = "internal"
