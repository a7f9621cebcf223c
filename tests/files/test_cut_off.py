"""A file of weights that is cut off under a running model: a sentence, and no signal.

In processes of their own, for whoever touches a mapped page that is gone is ended by the system.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.bundles import bundle_of

BEGIN = """
import os, sys
from edgerun.backends.cpu import staged, weights
from edgerun.cli.main import main
from edgerun.llm.llm import LLM

bundle, backend, large, size = sys.argv[1:]
staged.LARGE_BYTES = int(large)
def cut_off():
    os.truncate(f"{bundle}/model.onnx.data", int(size))
"""
AFTER_LOADING = """
stream = LLM.stream_chat, LLM.stream
def cut(method):
    def call(*arguments, **options):
        cut_off()
        return method(*arguments, **options)
    return call
LLM.stream_chat, LLM.stream = map(cut, stream)
"""
WHILE_LOADING = """
prepare, calls = weights.WeightStore.prepare, []
def cut(*arguments, **options):
    calls.append(1)
    if len(calls) == 3:
        cut_off()
    return prepare(*arguments, **options)
weights.WeightStore.prepare = cut
"""
WHILE_GENERATING = """
from edgerun.engine.engine import Engine
step, calls = Engine.step, []
def cut(engine):
    calls.append(1)
    if len(calls) == 3:
        cut_off()
    return step(engine)
Engine.step = cut
"""
END = """
arguments = ["run", bundle, "-p", "abc", "-n", "6", "--raw", "-t", "1", "--backend", backend]
sys.exit(main([*arguments, "--temperature", "0"]))
"""
ALL, NONE = 1 << 40, 1  # of the tables of embeddings are copied whole


def run(
    folder: Path, when: str, *, backend: str = "cpu", large: int = NONE, size: int = 0
) -> subprocess.CompletedProcess[str]:
    bundle = folder / "bundle"
    shutil.copytree(bundle_of("llama", weights="int4"), bundle)
    arguments = [str(bundle), backend, str(large), str(size)]
    return subprocess.run(
        [sys.executable, "-c", BEGIN + when + END, *arguments],
        capture_output=True,
        text=True,
        timeout=100,
        env=os.environ,
    )


@pytest.mark.parametrize(
    ("when", "size"),
    [(AFTER_LOADING, 0), (WHILE_LOADING, 4096), (WHILE_GENERATING, 0)],
    ids=["after", "loading", "generating"],
)
def test_a_sentence_and_no_signal(tmp_path: Path, when: str, size: int) -> None:
    done = run(tmp_path, when, size=size)
    assert done.returncode == 1, done
    assert done.stderr.count("\n") == 1
    assert "the file of weights was changed or cut off since it was opened" in done.stderr


def test_the_reference_looks_before_each_call(tmp_path: Path) -> None:
    done = run(tmp_path, WHILE_GENERATING, backend="reference")
    assert done.returncode == 1, done
    assert "the file of weights was changed or cut off since it was opened" in done.stderr


def test_what_is_in_memory_goes_on(tmp_path: Path) -> None:
    """A small model needs its file no more once it is loaded."""
    done = run(tmp_path, WHILE_GENERATING, large=ALL)
    whole = run(tmp_path / "other", "", large=ALL)
    assert done.returncode == whole.returncode == 0, done
    assert done.stdout == whole.stdout
