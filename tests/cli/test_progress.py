"""What a first run says while it compiles."""

from __future__ import annotations

import pytest

from edgerun.cli.progress import CLEAR, SESSION, first_run, progress_line
from edgerun.kernels import registry


def test_a_log_gets_a_line_for_each_kernel(capsys: pytest.CaptureFixture[str]) -> None:
    with first_run() as progress:
        progress("linear_row 2 32")
        progress("attention fp16")
    out, err = capsys.readouterr()
    assert out == ""
    *lines, last = err.splitlines()
    assert lines == [
        "edgerun: compiling for this machine, first run only",
        "edgerun:   1 linear_row 2 32",
        "edgerun:   2 attention fp16",
    ]
    assert last.startswith("edgerun: compiled 2 kernels in ")


def test_a_terminal_gets_one_line_that_changes(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    with first_run() as progress:
        progress("linear_row 2 32")
        progress("attention fp16")
    shown = capsys.readouterr().err.split(CLEAR)
    text = "compiling for this machine, first run only: "
    assert shown[1:3] == [f"{text}1 linear_row 2 32", f"{text}2 attention fp16"]
    assert shown[3].startswith("edgerun: compiled 2 kernels in ")


def test_the_line_fits_the_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "30")
    with progress_line() as show:
        show("x" * 100)
        show("\x1b[2J")
    assert capsys.readouterr().err.split(CLEAR)[1:] == ["x" * 29, "␛[2J", ""]


def test_a_run_that_compiles_nothing_says_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    with first_run():
        pass
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize("kept", [True, False])
def test_kernels_that_could_not_be_kept_are_not_said_to_be(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, kept: bool
) -> None:
    monkeypatch.setattr(registry, "all_kept", lambda: kept)
    with first_run() as progress:
        progress("linear_row 2 32")
    assert capsys.readouterr().err.endswith(" s, kept for the next run\n" if kept else " s\n")


def test_an_interrupted_compilation_claims_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(KeyboardInterrupt), first_run() as progress:
        progress("linear_row 2 32")
        raise KeyboardInterrupt
    assert "compiled" not in capsys.readouterr().err


def test_a_session_of_onnxruntime_is_no_compilation(capsys: pytest.CaptureFixture[str]) -> None:
    with first_run() as progress:
        progress(SESSION)
    assert capsys.readouterr().err == "edgerun: starting onnxruntime\n"
