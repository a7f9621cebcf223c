"""A plugin of pytest in the emulator: the machine underneath compiles the kernels.

Emulated, compiling takes most of the time that cases of kernels take.
"""

from __future__ import annotations

import os
import subprocess
from functools import partial
from pathlib import Path

from edgerun.kernels.host.arm import arm_features
from edgerun.kernels.jit import compile_pool, service

ROOT = Path(__file__).resolve().parents[3]
COMPILER = "EMULATED_COMPILER"  # the variable that names the Python of the machine underneath


class CrossHelper(compile_pool.Helper):
    """A process outside of the emulator that compiles what it is sent (``cross_worker.py``)."""

    def __init__(self) -> None:
        features = ",".join(f"+{name}" for name in sorted(arm_features() or ()))
        variables = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")}
        path = os.pathsep.join(map(str, (ROOT, ROOT / "export", ROOT / "hw")))
        self._process = subprocess.Popen(
            [os.environ[COMPILER], "-m", "tools.emulate_isa.aarch64.cross_worker", features],
            cwd=ROOT,
            env=variables | {"PYTHONPATH": path},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )


compile_pool.Helper = CrossHelper  # type: ignore[misc]
service.CompilePool = partial(  # type: ignore[assignment,misc]
    compile_pool.CompilePool, most=1, prefers_here=lambda: False
)
