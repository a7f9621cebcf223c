"""The scripts that repeat the models: which steps they run, and where they go on."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytest.importorskip("tomllib")

from tools.train_default.recipe import Recipe

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="a POSIX shell")
FOLDER = Path("tools/train_default")
# Stands for python: notes its arguments and makes what they name, or waits for a signal.
PYTHON = r"""#!/bin/sh
shift
echo "$*" >> "$NOTES"
case "$*" in *"${STOP_AT:-nothing is like this}"*)
    trap 'echo signal >> "$NOTES"; exit 143' TERM
    while :; do sleep 0.02; done ;;
esac
while [ $# -gt 1 ]; do
    case "$1 $2" in
    --out*.toml | --out*.md) : > "$2" ;;
    "--out "* | "--run "* | "--hf "* | "-o "*)
        mkdir -p "$2"
        for name in real books asked brief wide; do : > "$2/$name.jsonl"; done ;;
    esac
    shift
done
"""
CORPORA = ("tinystories/train.txt", "tinystories/valid.txt", "stories/fables_mit.jsonl")
CORPORA += ("stories/storybooks_ccby.jsonl", "stories/fairytaleqa.jsonl")


class Script:
    """Runs a script of the folder with a python that only notes its steps."""

    def __init__(self, folder: Path, name: str) -> None:
        for path in CORPORA:
            file = folder / "data" / "corpora" / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text("text\n" * 1000)
        (folder / "python").write_text(PYTHON)
        (folder / "python").chmod(0o755)
        self.folder, self.notes = folder, folder / "notes"
        self.command = ["sh", str(FOLDER.resolve() / name), "data", "out", "model.gguf"]

    def start(self, **variables: str) -> subprocess.Popen[bytes]:
        self.notes.write_text("")
        own = {"PYTHON": str(self.folder / "python"), "NOTES": str(self.notes)}
        environment = {**os.environ, **own, **variables}
        # What is started in a shell's background has SIGINT ignored, and hands that on.
        usual = signal.signal(signal.SIGINT, signal.default_int_handler)
        try:
            return subprocess.Popen(self.command, cwd=self.folder, env=environment)
        finally:
            signal.signal(signal.SIGINT, usual)

    def steps(self, **variables: str) -> list[str]:
        """Runs it to its end; the steps without `tools.train_default.`."""
        assert self.start(**variables).wait(60) == 0
        return self.noted()

    def noted(self) -> list[str]:
        lines = self.notes.read_text().splitlines()
        return [line.removeprefix("tools.train_default.") for line in lines]


def trained(steps: list[str]) -> list[str]:
    """The recipes by which steps train."""
    return [
        Path(step.split("--recipe ")[1].split()[0]).stem for step in steps if "train --" in step
    ]


RUNS = ["taught", "taught_heal", "taught_more", "taught_own", "taught_last", "taught_wide"]
RUNS += ["taught_dry", "taught_dry_end"]


@pytest.mark.parametrize("trial", ["", "1"])
def test_the_default_model_goes_from_text_to_bundle(tmp_path: Path, trial: str) -> None:
    script = Script(tmp_path, "run_all.sh")
    steps = script.steps(TRIAL=trial)
    assert trained(steps) == RUNS
    assert steps[0].startswith("corpus text") and steps[-1].startswith("evaluate following")
    befores = re.findall(r"--start-from \S*runs/(\w+)/", "\n".join(steps))
    assert befores == RUNS[:-1], "every run goes on from the one before it"
    (averaged,) = [step for step in steps if "train --" in step and "--shares" in step]
    assert re.search(r"taught_wide/checkpoint.pt \S*taught_last/checkpoint.pt --shares", averaged)
    where = "out/trial" if trial else "out"
    assert all(f" {where}/" in step for step in steps)
    assert all("out/trial" in step for step in steps) is bool(trial)
    again = [step.split()[0] for step in script.steps(TRIAL=trial)]
    assert again == [
        "from_teacher.targets",
        "save",
        "save",
        "edgerun_export",
        "evaluate",
        "evaluate",
    ]


def test_a_trial_reads_little_by_the_same_recipes(tmp_path: Path) -> None:
    steps = Script(tmp_path, "run_experts.sh").steps(TRIAL="1")
    assert trained(steps) == ["taught_experts"]
    for path in CORPORA:
        lines = len((tmp_path / "out/trial/data/corpora" / path).read_text().splitlines())
        assert 0 < lines < 1000
    for path in (FOLDER / "recipes").glob("*.toml"):
        usual = Recipe.read(path)
        short = Recipe.read(tmp_path / "out/trial/recipes" / path.name)
        assert (short.batch_tokens, short.own_replies) == (2048, 8)
        assert (short.mix, short.model) == (usual.mix, usual.model)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_the_step_and_the_script_which_go_on(
    tmp_path: Path, number: signal.Signals
) -> None:
    script = Script(tmp_path, "run_all.sh")
    for stop in ("from_teacher.finetune", "runs/taught_own"):
        running = script.start(STOP_AT=f"{stop} " if "." in stop else f"--run out/{stop}")
        deadline = time.monotonic() + 60
        while stop not in script.notes.read_text() and time.monotonic() < deadline:
            time.sleep(0.05)
        running.send_signal(number)
        assert running.wait(60) == 143
        assert script.noted()[-1] == "signal" and stop in script.noted()[-2]
    steps = script.steps()
    assert trained(steps) == RUNS[3:]
    assert steps[0].startswith("from_teacher.targets"), "what is finished stays"


def test_a_step_that_fails_ends_the_script_and_leaves_nothing_whole(tmp_path: Path) -> None:
    script = Script(tmp_path, "run_all.sh")
    (tmp_path / "python").write_text(PYTHON.replace("trap 'echo signal", "exit 7; trap '"))
    assert script.start(STOP_AT="from_teacher.cut").wait(60) == 7
    assert not (tmp_path / "out/cut").exists() and (tmp_path / "out/made").exists()
    assert script.steps()[0].startswith("from_teacher.cut")


def test_another_number_of_tokens_makes_a_finished_run_go_on(tmp_path: Path) -> None:
    script = Script(tmp_path, "run_all.sh")
    script.steps()
    assert trained(script.steps(MORE_TOKENS="2e7")) == ["taught_more"]


def test_the_small_model_goes_on_too(tmp_path: Path) -> None:
    script = Script(tmp_path, "run_small.sh")
    runs = ["run", "run_on", "run_end", "run_own"]
    steps = script.steps(TRIAL="1")
    assert runs_of(steps) == runs and "--until-tokens 1.4e4" in " ".join(steps)
    assert runs_of(script.steps(TRIAL="1")) == []
    script.command[-1] = "09:00"
    assert runs_of(script.steps()) == runs[:1]
    script.command += ["10:00", "10:30"]
    steps = script.steps()
    assert runs_of(steps) == runs[1:3]
    assert "--until 10:30" in " ".join(steps) and trained(steps) == ["go_on", "end"]


def runs_of(steps: list[str]) -> list[str]:
    """The folders of what trains."""
    return [re.findall(r"--run \S*/(\w+)", step)[0] for step in steps if "train --" in step]
