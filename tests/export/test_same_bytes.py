"""A checkpoint and the same options give the same bytes, in any process and on any cores."""

from __future__ import annotations

import os
import subprocess
import sys
from hashlib import sha256
from pathlib import Path

import pytest

from edgerun_export.pipeline import ExportOptions, export

GOLDEN = Path(__file__).resolve().parents[1] / "golden"
ALL = sorted(path.name for path in GOLDEN.iterdir() if path.is_dir())
FEW = ["bitnet-packed", "gpt_neox", "qwen3_next"]
CODE = """
import os, sys
from pathlib import Path
from edgerun_export.pipeline import ExportOptions, export
if hasattr(os, "sched_setaffinity"):
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
golden, out, *names = sys.argv[1:]
for name in names:
    export(Path(golden, name), Path(out, name))
"""


def digests_of(folder: Path) -> dict[str, str]:
    return {path.name: sha256(path.read_bytes()).hexdigest() for path in folder.iterdir()}


@pytest.mark.parametrize("names", [FEW, pytest.param(ALL, marks=pytest.mark.slow)], ids=len)
def test_bundles_are_the_same_to_the_byte(names: list[str], tmp_path: Path) -> None:
    command = [sys.executable, "-c", CODE, str(GOLDEN), str(tmp_path / "other"), *names]
    environment = {**os.environ, "PYTHONHASHSEED": "99"}
    with subprocess.Popen(command, env=environment) as other:
        for name in names:
            export(GOLDEN / name, tmp_path / name, ExportOptions())
    assert other.returncode == 0
    for name in names:
        assert digests_of(tmp_path / name) == digests_of(tmp_path / "other" / name), name
