"""Runs the command line in this process, on the fake model."""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from edgerun.cli.main import main
from edgerun.loading import Model
from tests import fakes


@dataclass(frozen=True)
class Result:
    code: int
    out: str
    err: str


Run = Callable[..., Result]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Calls main; ``model`` is what would be loaded, ``stdin`` bytes, or None for a terminal."""

    def call(*arguments: str, model: Model | None = None, stdin: bytes | None = b"") -> Result:
        class Input(io.TextIOWrapper):
            def isatty(self) -> bool:
                return stdin is None

        def prepare(path: Any, options: Any) -> Model:
            return model or fakes.fake_model()

        monkeypatch.setattr("sys.stdin", Input(io.BytesIO(stdin or b""), "utf-8"))
        monkeypatch.setattr("edgerun.llm.prepare", prepare)
        capsys.readouterr()
        code = main(arguments)
        return Result(code, *capsys.readouterr())

    return call
