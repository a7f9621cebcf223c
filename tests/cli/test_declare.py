"""Command lines that are read without typer mean what they mean with it."""

from __future__ import annotations

import functools
import inspect
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.main import get_command

from edgerun.cli import chat, run
from edgerun.cli.declare import read

COMMANDS = {"run": run.run, "chat": chat.chat}
HEAVY = ("typer", "click", "pydantic", "rich", "onnx", "google", "numba", "llvmlite", "psutil",
         "prompt_toolkit", "onnxruntime", "openvino", "email", "edgerun.calibration")  # fmt: skip


def typers(name: str, words: list[str], monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The arguments with which typer calls a command."""
    given: dict[str, Any] = {}

    @functools.wraps(COMMANDS[name])
    def note(**arguments: Any) -> None:
        given.update(arguments)

    module = sys.modules[f"edgerun.cli.{name}"]
    monkeypatch.setattr(module, name, note)
    app = typer.Typer()
    app.callback()(lambda: None)
    module.register(app)
    group = get_command(app)
    with group.make_context("edgerun", [name, *words]) as context:
        group.invoke(context)
    return given


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("run", []),
        ("run", ["-p", "Tell me a story about a dog.", "-n", "150"]),
        ("run", ["models/x", "--prompt", "", "--max-tokens", "007", "--json", "--stats"]),
        ("run", ["-p", "-", "--stop", "a", "--stop", "b", "--raw", "folder"]),
        ("run", ["--temperature", "0", "--top-p", "0.95", "--top-k", "40", "--min-p", "0.05"]),
        ("run", ["--repetition-penalty", "1.1", "--seed", "3", "--system", "Be ünkind."]),
        ("run", ["--threads", "2", "--backend", "cpu", "--device", "x", "--context", "64"]),
        ("chat", ["--kv-cache", "int8", "--pack", "auto", "--stats"]),
        ("chat", ["m", "--system", "a b"]),
    ],
)
def test_a_plain_command_line_is_read_as_typer_reads_it(
    name: str, words: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    function = COMMANDS[name]
    mine = read(function, words)
    assert mine is not None
    defaults = {one.name: one.default for one in inspect.signature(function).parameters.values()}
    expected = typers(name, words, monkeypatch)
    assert {**defaults, **mine} == expected
    assert [type(mine[one]) for one in mine] == [type(expected[one]) for one in mine]


@pytest.mark.parametrize(
    "words",
    [
        ["--help"],
        ["-h"],
        ["--bogus"],
        ["--max"],  # short for --max-tokens, perhaps
        ["-n5"],
        ["-n", "x"],
        ["-n", "-5"],
        ["-n", "1_0"],
        ["-n", " 5"],
        ["-n", "١"],
        ["-n", "9" * 30],
        ["-n"],
        ["-n", "1", "-n", "2"],
        ["-n", "1", "--max-tokens", "2"],
        ["--max-tokens=5"],
        ["--temperature", "nan"],
        ["--temperature", "1e3"],
        ["--temperature", "-1"],
        ["--json=1"],
        ["--json", "--json"],
        ["-p", "--json"],
        ["-p", "\udcff"],
        ["--", "x"],
        ["a", "b"],
        [""],
    ],
)
def test_anything_else_is_left_to_typer(words: list[str]) -> None:
    assert read(run.run, words) is None


def test_a_path_is_a_path() -> None:
    assert read(run.run, ["a/b"]) == {"model": Path("a/b")}


SCRIPT = """
import sys
from edgerun.cli.main import main
code = main(["run", "-p", "x", "-n", "2"])
print([name for name in {heavy} if name in sys.modules], file=sys.stderr)
sys.exit(code)
"""


def test_a_warm_run_imports_nothing_heavy() -> None:
    """The cache of the test session is warm after the first of the two."""
    for _ in range(2):
        done = subprocess.run(
            [sys.executable, "-c", SCRIPT.format(heavy=HEAVY)],
            capture_output=True,
            text=True,
            env=os.environ,
            check=True,
            timeout=100,
        )
    assert done.stdout.strip()
    assert done.stderr.strip() == "[]"
