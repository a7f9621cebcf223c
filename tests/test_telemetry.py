"""Libraries that would report on their users leave nothing behind, and so send nothing."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from edgerun.env import settings
from tests.support.bundles import bundle_of

USE = """
import sys
from edgerun.cli.main import main

bundle, checkpoint, target = sys.argv[1:]
text = ["run", bundle, "-p", "abc", "-n", "2", "--raw", "-t", "1"]
assert main([*text, "--backend", "onnxruntime"]) == 0
assert main([*text, "--place", "prefill=openvino:CPU"]) == 0
assert main(["export", checkpoint, "-o", target, "--verify"]) == 0
"""


def test_nothing_appears_at_home(tmp_path: Path) -> None:
    home, target = tmp_path / "home", tmp_path / "target"
    home.mkdir()
    asked = ("CI", "ORT_DISABLE_TELEMETRY")  # by which they would be silent without us
    environment = {name: value for name, value in os.environ.items() if name not in asked}
    bundle = bundle_of("llama", weights="int4")
    checkpoint = Path(__file__).parent / "golden" / "llama"
    done = subprocess.run(
        [sys.executable, "-c", USE, str(bundle), str(checkpoint), str(target)],
        capture_output=True,
        text=True,
        timeout=200,
        env={**environment, "HOME": str(home), "EDGERUN_CACHE": str(settings().cache_dir)},
    )
    assert done.returncode == 0, done.stderr
    assert list(home.rglob("*")) == []
