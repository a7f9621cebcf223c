"""What is left out while kernels are translated changes nothing of them, nor of other functions."""

import subprocess
import sys
from typing import Any

import pytest
from numba import njit
from numba.core import inline_closurecall
from numba.core.codegen import JITCodeLibrary
from numba.core.errors import TypingError
from numba.core.lowering import Lower
from numba.core.postproc import PostProcessor
from numba.core.registry import cpu_target
from numba.core.typing.context import BaseContext

from edgerun.kernels.host.processor import linux_machine
from edgerun.kernels.jit.catalogue import compile_named
from edgerun.kernels.jit.compiler import PLAIN, compile_object
from edgerun.kernels.jit.elf import MACHINES, Image, read_image
from edgerun.kernels.jit.target import ENTRY

KERNELS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("gate", {"activation": "silu", "lanes": 8}),
    ("linear_row", {"bits": 4, "lanes": 16, "isa": "portable"}),
    ("attention", {"dtype": "fp16", "head_dim": 16, "group": 2, "lanes": 4}),
    ("expert_plan", {}),
)
# Without all but the first, which changes what LLVM begins with. In a process of its own: functions
# that several kernels call are translated once in a process.
WITHOUT = """
import sys
from edgerun.kernels.jit import catalogue, compiler, shortcuts
from tests.kernels.jit.test_shortcuts import KERNELS

compiler.shortcuts = shortcuts.no_machine_code
for name, params in KERNELS:
    sys.stdout.write(catalogue.compile_named(name, params).hex() + "\\n")
"""
REPLACED: tuple[tuple[Any, str], ...] = (
    (JITCodeLibrary, "_optimize_functions"),
    (JITCodeLibrary, "_finalize_specific"),
    (Lower, "create_cpython_wrapper"),
    (inline_closurecall.InlineWorker, "inline_function"),
    (PostProcessor, "run"),
    (BaseContext, "resolve_function_type"),
    (cpu_target.target_context, "get_executable"),
    (cpu_target.target_context.codegen(), "_add_module"),
)


@pytest.mark.skipif(linux_machine() not in MACHINES, reason="object files of Linux")
def test_kernels_are_the_same_without_shortcuts() -> None:
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT], capture_output=True, text=True, check=True
    )
    for (name, params), line in zip(KERNELS, done.stdout.split(), strict=True):
        # Objects differ in the numbers that Numba gives functions, which are in their names.
        assert image(compile_named(name, params)) == image(bytes.fromhex(line)), name


def image(code: bytes) -> Image:
    """What is loaded of an object file."""
    return read_image(code, ENTRY, linux_machine())


def test_numba_is_as_before_even_after_an_error() -> None:
    def wrong(address: int, chunk: int) -> None:
        address.nothing  # type: ignore[attr-defined]  # noqa: B018

    before = [getattr(*each) for each in REPLACED]
    with pytest.raises(TypingError):
        compile_object(wrong, PLAIN)
    assert [getattr(*each) for each in REPLACED] == before


def test_functions_of_others_are_called_from_python() -> None:
    @njit
    def doubled(x):  # type: ignore[no-untyped-def]
        return 2 * x + x * 0

    compile_named(*KERNELS[0])
    assert (doubled(21), doubled(0.5)) == (42, 1.0)
