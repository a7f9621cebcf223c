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


def test_what_ci_skips_without_torch_has_a_command(repo_root: Path) -> None:
    text = (repo_root / "docs" / "contributing.md").read_text()
    (command,) = (
        line for line in text.splitlines() if line.startswith(".venv/bin/python -m pytest")
    )
    named = [repo_root / word for word in command.split() if word.startswith("tests/")]
    assert all(path.exists() for path in named)
    needing = {
        path
        for path in (repo_root / "tests").rglob("test_*.py")
        if 'importorskip("torch")' in path.read_text() and path != Path(__file__)
    }
    assert needing
    assert {path for path in needing if not {path, *path.parents}.intersection(named)} == set()


def test_importing_edgerun_does_not_import_the_runtime() -> None:
    code = "import sys, edgerun; print([m for m in ('numpy', 'numba', 'onnx') if m in sys.modules])"
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert result.stdout.strip() == "[]"


def test_unknown_attribute_is_an_attribute_error() -> None:
    assert not hasattr(edgerun, "no_such_name")
