"""Turns a kernel body into object code. Imports Numba, so it is imported only to compile.

The object has one symbol, ``ENTRY``, and refers to nothing but the C library: Numba's own entry
points, which report Python exceptions, are left out, since kernels raise none. Loading it again
(``loader.py``) therefore needs neither Numba nor its import time.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import binding
from numba import njit

from edgerun.kernels.loader import ENTRY, target_machine

ENTRY_TEMPLATE = """
define {kind} @{entry}({args}) {{
  %result = alloca i64
  %error = alloca ptr
  %status = call i32 @"{inner}"(ptr %result, ptr %error, {args})
  {end}
}}
"""


def compile_object(body: Callable[..., Any], arguments: int = 2, *, result: bool = False) -> bytes:
    """Object code of ``body`` for this machine.

    Args:
        body: a function of int64 arguments that Numba can compile.
        arguments: how many.
        result: whether it returns an int64 rather than nothing.
    """
    machine = target_machine()
    return bytes(machine.emit_object(compile_module(body, arguments, machine, result=result)))


def compile_module(
    body: Callable[..., Any], arguments: int, machine: Any, *, result: bool = False
) -> Any:
    """The optimised LLVM module of ``body`` for a target machine."""
    function = njit(error_model="numpy", no_cpython_wrapper=True, no_cfunc_wrapper=True)(body)
    function.compile(f"{'int64' if result else 'void'}({', '.join(['intp'] * arguments)})")
    (compiled,) = function.overloads.values()
    module = binding.parse_assembly(
        compiled.library.get_llvm_str()
        + ENTRY_TEMPLATE.format(
            kind="i64" if result else "void",
            entry=ENTRY,
            inner=compiled.fndesc.llvm_func_name,
            args=", ".join(f"i64 %a{index}" for index in range(arguments)),
            end="%value = load i64, ptr %result\n  ret i64 %value" if result else "ret void",
        )
    )
    _drop_unused(module)
    passes = binding.create_pass_builder(
        machine, binding.create_pipeline_tuning_options(speed_level=3)
    )
    passes.getModulePassManager().run(module, passes)
    return module


def _drop_unused(module: Any) -> None:
    """Makes all but the entry internal, so that the optimiser removes what nothing calls."""
    for one in [*module.functions, *module.global_variables]:
        if not one.is_declaration and one.name != ENTRY:
            one.linkage = "internal"
