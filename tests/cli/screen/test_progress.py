"""What a first run says while it compiles."""

from __future__ import annotations

import pytest

from edgerun.cli.screen.progress import CLEAR, COMPILING, SESSION, first_run, progress_line
from edgerun.kernels.jit import service
from edgerun.values import Notice


def test_a_log_gets_one_line_before_and_one_after(capsys: pytest.CaptureFixture[str]) -> None:
    with first_run() as progress:
        progress(service.STARTING)
        assert capsys.readouterr().err == f"edgerun: {COMPILING}\n"
        progress("linear_row 2 32")
        progress("attention fp16")
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("edgerun: compiled 2 kernels in ")
    assert err.count("\n") == 1


def test_a_terminal_gets_a_number_that_only_grows(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "80")
    with first_run() as progress:
        for text in (service.STARTING, "linear_row 2 32", service.STARTING, "attention fp16"):
            progress(text)
    shown = capsys.readouterr().err.split(CLEAR)
    counts = ["", " (1 so far)", " (1 so far)", " (2 so far)"]
    assert shown[1:5] == [f"{COMPILING}{count}" for count in counts]
    assert shown[5].startswith("edgerun: compiled 2 kernels in ")


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


@pytest.mark.parametrize("is_kept", [True, False])
def test_kernels_that_could_not_be_kept_are_not_said_to_be(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, is_kept: bool
) -> None:
    monkeypatch.setattr(service, "all_kept", lambda: is_kept)
    with first_run() as progress:
        progress("linear_row 2 32")
    assert capsys.readouterr().err.endswith(" s, kept for the next run\n" if is_kept else " s\n")


def test_an_interrupted_compilation_claims_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(KeyboardInterrupt), first_run() as progress:
        progress("linear_row 2 32")
        raise KeyboardInterrupt
    assert "compiled" not in capsys.readouterr().err


def test_a_session_of_onnxruntime_is_no_compilation(capsys: pytest.CaptureFixture[str]) -> None:
    with first_run() as progress:
        progress(SESSION)
    assert capsys.readouterr().err == "edgerun: starting onnxruntime\n"


def test_a_notice_is_said_and_is_no_compilation(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with first_run() as progress:
        progress(Notice("prompts attend in bfloat16"))
    assert capsys.readouterr().err == "edgerun: prompts attend in bfloat16\n"
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    with first_run() as progress:
        progress("linear_row 2 32")
        progress(Notice("prompts attend in bfloat16"))
    shown = capsys.readouterr().err.split(CLEAR)
    assert "edgerun: prompts attend in bfloat16\n" in shown, "on a line of its own"
    assert shown[-1].startswith("edgerun: compiled 1 kernel in ")
