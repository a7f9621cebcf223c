"""What the first word of a reply waits for: no compiler, no converter, nothing that is not used."""

from __future__ import annotations

import os
import subprocess
import sys

UNUSED = (
    "numba",
    "llvmlite",
    "onnx",
    "onnxruntime",
    "openvino",
    "prompt_toolkit",
    "psutil",
    "edgerun.plan.calibration.processor",
)
SCRIPT = """
import sys
from edgerun.cli.main import main
code = main(["run", "-p", "x", "-n", "2"])
print([name for name in {unused} if name in sys.modules], file=sys.stderr)
sys.exit(code)
"""


def test_a_warm_run_imports_nothing_that_it_does_not_use() -> None:
    """The cache of the test session is warm after the first of the two."""
    for _ in range(2):
        done = subprocess.run(
            [sys.executable, "-c", SCRIPT.format(unused=UNUSED)],
            capture_output=True,
            text=True,
            env=os.environ,
            check=True,
            timeout=1000,  # emulated, the first run compiles for some minutes
        )
    assert done.stdout.strip()
    assert done.stderr.strip() == "[]"


def test_help_waits_for_no_model_and_no_numpy() -> None:
    """The flags come from the files of the sampling processors."""
    script = 'import sys; from edgerun.cli.main import main; main(["run", "--help"])'
    done = subprocess.run(
        [sys.executable, "-c", f'{script}\nprint("numpy" in sys.modules, file=sys.stderr)'],
        capture_output=True,
        text=True,
        check=True,
        timeout=100,
    )
    assert "--typical-p X" in done.stdout
    assert done.stderr.strip() == "False"
