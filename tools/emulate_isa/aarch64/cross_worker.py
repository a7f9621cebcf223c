"""Compiles kernels for 64-bit ARM on another machine, for a process in the emulator.

    python -m tools.emulate_isa.aarch64.cross_worker FEATURES

It speaks as ``edgerun.kernels.jit.compile_worker`` does. Code is optimised with this machine's
costs, as ``instructions.py`` has it, so it may be slower than ARM's own; it computes the same.
"""

from __future__ import annotations

import platform
import sys
import warnings
from collections.abc import Callable, Sequence
from typing import Any

TRIPLE = "aarch64-unknown-linux-gnu"


def main() -> None:
    """Answers until there is no more input."""
    warnings.simplefilter("ignore")  # Numba's, about what the kernels' authors know
    platform.machine = lambda: "aarch64"  # which kernels ask to choose their instructions
    from llvmlite import binding

    from edgerun.kernels.jit import catalogue, compile_worker
    from edgerun.kernels.jit.compiler import PLAIN, compile_module
    from edgerun.kernels.jit.target import target_machine

    binding.initialize_all_targets()
    binding.initialize_all_asmprinters()
    arm = binding.Target.from_triple(TRIPLE).create_target_machine(
        cpu="generic", features=sys.argv[1], opt=3, jit=True, codemodel="jitdefault"
    )

    def compile_object(
        body: Callable[..., Any], arguments: Sequence[Any] = PLAIN, *, returns: bool = False
    ) -> bytes:
        module = compile_module(body, arguments, target_machine(), returns=returns)
        module.triple, module.data_layout = TRIPLE, str(arm.target_data)
        return bytes(arm.emit_object(module))

    catalogue.compile_object = compile_object
    compile_worker.main()


if __name__ == "__main__":
    main()
