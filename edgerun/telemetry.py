"""Reports about their users that libraries send to who makes them: not those that we load.

onnxruntime 1.32 and OpenVINO 2026.4 note what runs on the machine, under an identity that they
leave in the home directory, unless they are told otherwise before they are imported.
"""

from __future__ import annotations

import os
import sys


def decline_telemetry() -> None:
    """Declines for this process and its children; call it before either is imported.

    What was imported before by the program that embeds us is that program's to decide, and so is
    an environment variable that is set.
    """
    os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")  # read by the library as it starts
    # Without this package, which has no such switch, OpenVINO takes a stub of its own.
    sys.modules.setdefault("openvino_telemetry", None)  # type: ignore[arg-type]
