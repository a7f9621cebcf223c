"""Runs the command line in this process: on the fake model, or to be refused."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import io
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from edgerun import env
from edgerun.cli import commands
from edgerun.cli.main import main
from edgerun.llm.loading import Model
from edgerun.machine.profile import MachineProfile
from edgerun.plan.calibration.processor import Limits
from tests.support import fakes


@dataclass(frozen=True)
class Result:
    code: int
    out: str
    err: str


def limits(threads: int) -> Limits:
    """Of a machine that was never measured."""
    return Limits(
        MachineProfile(
            bandwidth={threads: 1e10},
            peaks={"multiply": {threads: 1e11}},
            fork_join_s={threads: 1e-6},
        ),
        memory_bytes_s=4e9,
    )


@dataclass
class Asked:
    """What the last command asked to load."""

    path: Path | None = None
    options: Any = None


@dataclass(frozen=True)
class Run:
    """Calls the command line."""

    call: Callable[..., Result]
    asked: Asked

    def __call__(self, *arguments: str, **given: Any) -> Result:
        return self.call(*arguments, **given)


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where chats are kept in this test."""
    folder = tmp_path / "state"
    changed = dataclasses.replace(env.settings(), state_dir=folder)
    monkeypatch.setattr(env, "settings", lambda: changed)
    return folder


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Calls main; ``model`` is what would be loaded, ``stdin`` bytes, or None for a terminal."""

    asked = Asked()
    # What measures the machine has tests of its own; it takes seconds.
    monkeypatch.setattr("edgerun.plan.calibration.processor.limits", limits)

    def call(*arguments: str, model: Model | None = None, stdin: bytes | None = b"") -> Result:
        class Input(io.TextIOWrapper):
            def isatty(self) -> bool:
                return stdin is None

        def prepare(path: Any, options: Any) -> Model:
            asked.path, asked.options = path, options
            return model or fakes.fake_model()

        monkeypatch.setattr("sys.stdin", Input(io.BytesIO(stdin or b""), "utf-8"))
        monkeypatch.setattr("edgerun.llm.llm.prepare", prepare)
        capsys.readouterr()
        code = main(arguments)
        return Result(code, *capsys.readouterr())

    return Run(call, asked)


COMMANDS = (("export", "edgerun_export.cli:register"),)  # as installed, see pyproject.toml


class Shell:
    """Runs commands that must fail, in a folder that they must leave as it is."""

    def __init__(self, folder: Path, capture: Any, patch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        self._capture = capture
        self._patch = patch

    def refuses(self, *arguments: object, code: int = 2, stdin: bytes | None = b"") -> str:
        """Returns the line of the error."""

        class Input(io.TextIOWrapper):
            def isatty(self) -> bool:
                return stdin is None

        self._patch.setattr("sys.stdin", Input(io.BytesIO(stdin or b""), "utf-8"))
        before = self._files()
        self._capture.readouterr()
        exit_code = main([str(argument) for argument in arguments])
        out, err = self._capture.readouterr()
        check_refusal(exit_code, out, err, code)
        assert self._files() == before
        return str(err)

    def _files(self) -> set[Path]:
        return set(self.folder.rglob("*"))


def check_refusal(exit_code: int, out: str, err: str, code: int) -> None:
    """One line on stderr, nothing on stdout, the right exit code."""
    assert (exit_code, out) == (code, ""), err
    assert err.startswith("edgerun: ")
    assert err.endswith("\n")
    assert err.count("\n") == 1
    assert "Traceback" not in err


@pytest.fixture
def shell(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Shell:
    def points(group: str) -> list[importlib.metadata.EntryPoint]:
        return [importlib.metadata.EntryPoint(name, value, group) for name, value in COMMANDS]

    monkeypatch.setattr(commands, "entry_points", points)
    return Shell(tmp_path, capsys, monkeypatch)
