"""ONNX's messages are the same with and without the package around them."""

from __future__ import annotations

import subprocess
import sys

import pytest

READ = """
import sys
{before}
from edgerun.graph.onnx_schema import onnx_messages
model = onnx_messages().ModelProto(ir_version=10)
alone = "onnx" not in sys.modules
import onnx
assert onnx.ModelProto is type(model)
assert onnx.load_from_string(model.SerializeToString()).ir_version == 10
print(alone)
"""


@pytest.mark.parametrize(("before", "alone"), [("", "True"), ("import onnx", "False")])
def test_messages_are_those_of_the_package(before: str, alone: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", READ.format(before=before)],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert done.stdout.strip() == alone
