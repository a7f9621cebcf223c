"""Finding commands, and what errors look like."""

from __future__ import annotations

import re
import signal
import statistics
import subprocess
import sys
from pathlib import Path

import pytest

from edgerun.cli import commands
from edgerun.cli import main as cli
from edgerun.errors import BackendError, BundleError, InputError, StorageError
from tests.cli.conftest import Run

ROOT = Path(__file__).parents[2]
# A model that says one letter every 20 ms, behind the real command line.
# A shell starts background jobs with SIGINT ignored, and that is inherited.
SLOW = """
import signal, sys, time
signal.signal(signal.SIGINT, signal.default_int_handler)
from tests.support import fakes
from edgerun.llm import llm
from edgerun.cli.main import main
class Slow(fakes.FakeExecutable):
    def __call__(self, batch, cache, values=None):
        time.sleep(0.02)
        return super().__call__(batch, cache)
llm.prepare = lambda path, options: fakes.fake_model(Slow(), template=None, context=4096)
sys.exit(main())
"""


def start(*arguments: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-c", SLOW, *arguments],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


@pytest.mark.parametrize("arguments", [["--help"], ["-h"], []])
def test_help_lists_every_command(run: Run, arguments: list[str]) -> None:
    result = run(*arguments)
    assert (result.code, result.err) == (0, "")
    for name, summary in commands.COMMANDS.items():
        assert re.search(rf"^  {name} +{re.escape(summary)}$", result.out, re.MULTILINE)


@pytest.mark.parametrize("command", commands.COMMANDS)
def test_every_command_has_help(run: Run, command: str) -> None:
    result = run(command, "--help")
    assert result.code == 0
    assert result.out.startswith(f"Usage: edgerun {command} [OPTIONS]")
    assert "Examples:\n  edgerun " in result.out or command == "doctor"
    assert not re.search("<[a-z]", result.out)
    assert max(map(len, result.out.splitlines())) < 80


@pytest.mark.parametrize("command", commands.COMMANDS)
def test_help_tells_all_defaults_in_one_form(run: Run, command: str) -> None:
    page = " ".join(run(command, "--help").out.split())
    assert not re.search("if left out|Default", page)
    if command == "run":
        assert (
            "--max-tokens N Most tokens to generate. [default: 512; none for models that think]"
            in page
        )


def test_help_calls_numbers_numbers(run: Run) -> None:
    page = run("bench", "--help").out
    assert "--repeat N " in page  # which must be 1 or more
    assert "--context N " in page  # which has no bounds
    assert "--prompt-tokens TEXT" not in page


def test_names_of_options_leave_narrow_pages_room_for_words(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "44")
    assert "ID,ID\n" in run("run", "--help").out  # a name that fills all the room has its line
    options = run("bench", "--help").out.partition("Options:\n")[2].partition("\n\n")[0]
    texts = [line.strip() for line in options.splitlines() if line.startswith(" " * 10)]
    assert statistics.median(map(len, texts)) > 15


def test_lists_of_commands_show_what_each_does_in_one_line(run: Run) -> None:
    group = run("fpga", "--help").out.partition("Commands:\n")[2].partition("\n\n")[0]
    assert re.search(r"^  broker +Write the helper .* as one file\.$", group, re.MULTILINE)
    assert "sudoers" in run("fpga", "broker", "--help").out


def test_a_page_of_help_is_no_error_to_debug(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cli, "_debugging", lambda: True)
    result = run("run", "--help")
    assert (result.code, result.err) == (0, "")


@pytest.mark.parametrize("word", ["--version", "-V", "-v", "version"])
def test_the_version_is_printed(run: Run, word: str) -> None:
    assert run(word).out.startswith("edgerun 0.")


def test_help_is_a_word_too(run: Run) -> None:
    assert run("help") == run("--help")
    assert run("help", "run") == run("run", "--help")
    assert run("help", "fpga", "broker") == run("fpga", "broker", "--help")
    assert "did you mean 'run'?" in run("help", "rnu").err


def test_an_unknown_command_suggests_the_nearest(run: Run) -> None:
    result = run("rnu")
    assert (result.code, result.out) == (2, "")
    assert result.err == "edgerun: there is no command 'rnu': did you mean 'run'?\n"
    assert "there are run, chat" in run("zzzz").err
    assert "there are run, chat" in run("stream").err


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (BundleError("the bundle is gone"), 2),
        (BackendError("the device is gone"), 1),
        (StorageError("the disk is full"), 1),
        (PermissionError(13, "Permission denied", "file"), 1),
        (MemoryError(), 1),
        (RuntimeError("surprise"), 1),
        (KeyboardInterrupt(), 130),
    ],
)
def test_an_error_is_one_line_and_an_exit_code(
    run: Run, monkeypatch: pytest.MonkeyPatch, error: BaseException, code: int
) -> None:
    def fail(*arguments: object) -> None:
        raise error

    monkeypatch.setattr(cli, "_dispatch", fail)
    result = run("run")
    assert (result.code, result.out) == (code, "")
    assert result.err.startswith("edgerun: ")
    assert result.err.count("\n") == 1
    assert "Traceback" not in result.err


@pytest.mark.parametrize("command", commands.ABSENT)
def test_what_is_not_there_yet_is_said_in_one_sentence(run: Run, command: str) -> None:
    result = run(command, "llama3.2")
    assert (result.code, result.out) == (2, "")
    assert result.err.startswith(f"edgerun: {command!r} is not there: ")
    assert result.err.count("\n") == 1


def test_a_prompt_without_a_command_is_told_where_it_goes(run: Run) -> None:
    assert 'edgerun run "Hi"' in run("Tell me a story").err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["run", "--modle", "x"], "there is no option --modle: did you mean --model?;"),
        (["run", "-5 degrees"], "there is no option -5: a text that begins so goes behind -p;"),
        (["run", "--hepl"], "there is no option --hepl: did you mean --help?; see"),
        (["run", "--ctx-siz", "9"], "did you mean --ctx-size?"),
        (["run", "--max", "9"], "did you mean --max-tokens?"),
        (["run", "--top", "9"], "did you mean --top-k?"),
        (["plan", "--temp", "1"], "there is no option --temperature; see 'edgerun plan"),
        (["run", "--verbose"], "there is no option --verbose; see 'edgerun run"),
        (["run", "--file", "x"], "there is no option --file; see 'edgerun run"),
        (["run", "--stream"], "there is no option --stream; see 'edgerun run"),
        (["run", "a", "b", "c"], "a text of several words goes in quotes"),
        (
            ["cache", "clear", "now"],
            "unexpected extra argument(s) (now); see 'edgerun cache --help'",
        ),
        (["plan", "--plot"], "option '--plot' requires an argument; see 'edgerun plan --help'"),
        (
            ["fpga", "doctorr"],
            "there is no command 'doctorr': did you mean 'doctor'?; see 'edgerun",
        ),
        (["fpga", "zzzz"], "there is no command 'zzzz'; see 'edgerun fpga"),
        (["--modle", "x"], "there is no option --modle before a command"),
        (["run", "-n", "abc"], "-n / --max-tokens is 'abc'; expected a whole number; see"),
        (["run", "--temperature", "hot"], "--temperature is 'hot'; expected a number; see"),
        (["bench", "-p", "0"], "-p / --prompt-tokens is '0'; expected at least 1; see"),
    ],
)
def test_a_wrong_option_is_named_with_what_is_expected(
    run: Run, arguments: list[str], words: str
) -> None:
    result = run(*arguments)
    assert (result.code, result.out, result.err.count("\n")) == (2, "", 1)
    assert words in result.err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["-n", "-1"], "edgerun: -n is -1; expected a whole number"),
        (["-n0"], "edgerun: -n is 0; expected"),
        (["--max-tokens", "0"], "edgerun: --max-tokens is 0; expected"),
        (["--num_predict=0"], "edgerun: --num_predict is 0; expected"),
        (["--kv-cache", "int3"], "edgerun: --kv-cache is 'int3'; expected"),
    ],
)
def test_a_value_that_cannot_be_is_that_of_the_flag_that_was_typed(
    run: Run, arguments: list[str], words: str
) -> None:
    assert run("run", "-p", "x", *arguments).err.startswith(words)


def test_flags_of_other_packages_commands_are_named_as_well(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*arguments: object) -> None:
        raise InputError("kv_cache is 'int5'; expected fp32")

    monkeypatch.setattr(cli, "_dispatch", fail)
    shown = run("quality", "m", "--text", "t", "--kv-cache", "int5").err
    assert shown == "edgerun: --kv-cache is 'int5'; expected fp32\n"


def test_what_no_flag_said_is_called_as_it_is(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*arguments: object) -> None:
        raise InputError("threads is 0; expected more")

    monkeypatch.setattr(cli, "_dispatch", fail)
    for words in (["run", "-n", "3"], ["fpga", "bench"], ["zzzz"], []):
        assert run(*words).err == "edgerun: threads is 0; expected more\n"


def test_a_group_without_a_command_shows_what_there_is(run: Run) -> None:
    result = run("fpga")
    assert (result.code, result.out) == (2, "")
    assert result.err.startswith("Usage: edgerun fpga ") and "  doctor " in result.err


def test_errors_break_no_word_on_a_terminal(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = run("pull").err
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "40")
    lines = run("pull").err.splitlines()
    assert max(map(len, lines)) < 40
    assert " ".join(line.strip() for line in lines) == plain.strip()


def test_python_runs_the_package(repo_root: Path) -> None:
    command = [sys.executable, "-m", "edgerun", "--version"]
    done = subprocess.run(command, cwd=repo_root, capture_output=True, text=True, check=True)
    assert done.stdout.startswith("edgerun 0.")


def test_other_packages_add_commands(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    class Point:
        name = "greet"

        def load(self) -> object:
            def register(app: object) -> None:
                app.command("greet")(lambda: sys.stdout.write("hello\n") and None)  # type: ignore

            return register

    monkeypatch.setattr(commands, "entry_points", lambda group: [Point()])
    assert run("greet").out == "hello\n"
    assert "greet" in run("--help").out


@pytest.mark.skipif(sys.platform == "win32", reason="signals")
def test_ctrl_c_ends_the_program_with_code_130() -> None:
    process = start("run", "-p", "x", "-n", "1000")
    assert process.stdout is not None
    process.stdout.read(1)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=100)
    assert process.returncode == 130
    assert err.decode().strip().endswith("interrupted")
    assert b"Traceback" not in err


@pytest.mark.skipif(sys.platform == "win32", reason="pipes")
def test_a_reader_that_goes_away_ends_the_program_quietly() -> None:
    process = start("run", "-p", "x", "-n", "1000")
    assert process.stdout is not None
    process.stdout.read(1)
    process.stdout.close()
    assert process.stderr is not None
    assert process.stderr.read() == b""
    assert process.wait(timeout=100) == cli.READER_GONE
    process.stderr.close()


@pytest.mark.skipif(sys.platform == "win32", reason="a shell's redirections")
@pytest.mark.parametrize(
    ("closed", "options", "code", "has_out", "words"),
    [
        (">&-", "-p x -n 2", 0, False, ""),
        (">&-", "-p x -n 2 --json", 0, False, ""),
        ("2>&-", "-p x -n 2", 0, True, ""),
        ("2>&-", "-p x -n 0", 2, False, ""),
        ("<&- >&- 2>&-", "-p x -n 2", 0, False, ""),
        ("<&-", "-n 2", 2, False, "edgerun: the prompt is empty"),
    ],
)
def test_a_stream_that_was_closed_is_the_null_device(
    closed: str, options: str, code: int, has_out: bool, words: str
) -> None:
    done = subprocess.run(
        ["sh", "-c", f'exec "$0" -c "$1" run {options} {closed}', sys.executable, SLOW],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, bool(done.stdout)) == (code, has_out), done
    assert done.stderr.startswith(words) if words else not done.stderr, done


def test_only_the_wanted_command_is_imported() -> None:
    script = (
        "import sys; from edgerun.cli.main import main; main(['run', '--help']);"
        "print([name for name in ('numba', 'onnx', 'prompt_toolkit', 'edgerun.cli.bench')"
        " if name in sys.modules])"
    )
    run = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, cwd=ROOT, check=True
    )
    assert run.stdout.strip().endswith("[]")
