"""What the other runtimes installed here can do."""

from importlib.metadata import PackageNotFoundError, version

import pytest

from edgerun.backends.onnxruntime import COMPLETE, release

try:
    ONNXRUNTIME = version("onnxruntime")
except PackageNotFoundError:
    ONNXRUNTIME = "0"

needs_complete_onnxruntime = pytest.mark.skipif(
    release(ONNXRUNTIME) < COMPLETE,
    reason=f"onnxruntime {ONNXRUNTIME} has no 2-bit weights and errs in some attention",
)
