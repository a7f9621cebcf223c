"""Tells early and in one sentence what is missing to write OpenVINO's files."""

from __future__ import annotations

import re

from edgerun.errors import MissingDependencyError
from edgerun.telemetry import decline_telemetry

# The oldest version whose ONNX reader keeps 2-bit weights packed and knows opset 23.
OLDEST = (2026, 4)


def openvino_version() -> str:
    """Returns the version of OpenVINO, once it is sure that an export can use it.

    Raises:
        MissingDependencyError: OpenVINO or its tokenizers are missing, too old, or do not fit
            together.
    """
    decline_telemetry()
    try:
        import openvino
        import openvino_tokenizers
    except ImportError as error:
        raise MissingDependencyError(
            "--profile openvino needs OpenVINO and its tokenizers: pip install 'edgerun[npu]'"
        ) from error
    version = str(openvino.get_version())
    if _numbers(version) < OLDEST:
        raise MissingDependencyError(
            f"--profile openvino needs OpenVINO {'.'.join(map(str, OLDEST))} or newer, and "
            f"{version} is installed: pip install -U 'edgerun[npu]'"
        )
    if not openvino_tokenizers.is_openvino_tokenizers_compatible:
        raise MissingDependencyError(
            f"OpenVINO {version} and openvino-tokenizers {openvino_tokenizers.__version__} do not "
            "fit together; install both from one release: pip install -U 'edgerun[npu]'"
        )
    return version


def _numbers(version: str) -> tuple[int, ...]:
    match = re.match(r"(\d+)\.(\d+)", version)
    return tuple(map(int, match.groups())) if match else (0, 0)
