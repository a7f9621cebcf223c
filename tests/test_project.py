"""What the packaging promises: commands that agree with the README, and light imports."""

import subprocess
import sys
from importlib import metadata
from pathlib import Path

import edgerun


def test_version_is_the_installed_one() -> None:
    assert edgerun.__version__ == metadata.version("edgerun")


def test_ci_finds_one_test_command_in_the_readme(repo_root: Path) -> None:
    result = subprocess.run(
        ["bash", ".ci/run", "command"], cwd=repo_root, capture_output=True, text=True, check=True
    )
    assert result.stdout.count("\n") == 1
    assert " -m pytest -q" in result.stdout


def test_importing_edgerun_does_not_import_the_runtime() -> None:
    code = "import sys, edgerun; print([m for m in ('numpy', 'numba', 'onnx') if m in sys.modules])"
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert result.stdout.strip() == "[]"


def test_unknown_attribute_is_an_attribute_error() -> None:
    assert not hasattr(edgerun, "no_such_name")
