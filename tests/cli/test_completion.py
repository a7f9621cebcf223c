"""Words for the Tab key."""

from __future__ import annotations

import shutil
import subprocess
import sys

import pytest

from edgerun.cli.commands import command_names
from edgerun.cli.completion import SCRIPTS, candidates
from tests.cli.conftest import Run


def test_commands_and_options_are_completed() -> None:
    assert candidates([""]) == command_names()
    assert candidates(["pl"]) == ["plan"]
    assert candidates(["run", "--tempe"]) == ["--temperature"]
    assert candidates(["run", "-p", "x", "--max"]) == ["--max-tokens"]
    assert candidates(["plan", "--expl"]) == ["--explain"]
    assert candidates(["run", "mod"]) == []  # the shell offers files
    assert candidates(["nothing", "--x"]) == []


def test_the_command_prints_scripts_and_words(run: Run) -> None:
    for shell, script in SCRIPTS.items():
        assert run("completion", shell).out == f"{script}\n"
    assert run("completion", "words", "--", "doc").out == "doctor\n"
    wrong = run("completion", "tcsh")
    assert (wrong.code, wrong.out) == (2, "")
    assert "expected bash, zsh, fish" in wrong.err


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
def test_bash_completes_with_the_script() -> None:
    test = f"""
    edgerun() {{ {sys.executable} -m edgerun "$@"; }}
    {SCRIPTS["bash"]}
    COMP_WORDS=(edgerun run --rep) COMP_CWORD=2
    _edgerun
    echo "${{COMPREPLY[@]}}"
    """
    done = subprocess.run(["bash", "-c", test], capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("--repetition-penalty\n", "")
