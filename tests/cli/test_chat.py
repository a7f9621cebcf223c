"""``edgerun chat`` through a pipe and at a terminal."""

from __future__ import annotations

import os
import select
import sys
import time
from pathlib import Path

import pytest

from edgerun.cli import terminal
from tests import fakes
from tests.cli.conftest import Run
from tests.cli.test_main import ROOT, SLOW


def test_every_line_of_a_pipe_is_answered(run: Run) -> None:
    result = run("chat", "-n", "4", stdin=b"hello\n\nagain\n")
    assert result.code == 0
    assert [len(line) for line in result.out.splitlines()] == [4, 4]


def test_a_message_without_a_reply_is_an_error_at_the_end_of_a_pipe(run: Run) -> None:
    result = run("chat", "-n", "4", stdin=b"x" * 600 + b"\nhello\n")
    assert result.code == 2
    assert [len(line) for line in result.out.splitlines()] == [4]
    assert "tokens and the context is 512" in result.err
    assert result.err.splitlines()[-1].endswith("1 of the messages got no reply, see above")


def test_ctrl_c_between_the_lines_of_a_pipe_ends_the_chat(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    events: list[type[BaseException]] = [KeyboardInterrupt, EOFError]

    def read(lines: object) -> str:
        raise events.pop(0)

    monkeypatch.setattr(terminal, "read_message", read)
    assert run("chat").code == 130


def test_a_backslash_goes_on_in_the_next_line() -> None:
    import io

    lines = io.StringIO("one\\\ntwo\nthree")
    assert [terminal.read_message(lines) for _ in range(2)] == ["one\ntwo", "three"]
    with pytest.raises(EOFError):
        terminal.read_message(lines)


def test_commands_answer_on_stderr(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "saved"
    script = [
        "/help",
        "/system be kind",
        "/set temperature 0.5",
        "/set temperature hot",
        "/set temprature 1",
        "/set top_p 7",
        "/set",
        "/sav",
        "/stats",
        "hello",
        "/stats",
        f"/save {file}",
        "/save",
        "/clear",
        f"/load {file}",
        f"/load {tmp_path}",
        "/quit",
        "never read",
    ]
    result = run("chat", "-n", "3", stdin="\n".join(script).encode())
    assert (result.code, len(result.out)) == (0, 4)
    for words in (
        "/quit     Ends the chat.",
        "system message: be kind",
        "temperature        0.5",
        "temperature is 'hot'; expected a number",
        "did you mean temperature?",
        "top_p is 7.0",
        "did you mean /save?",
        "there is no reply yet",
        "first token",
        "name a file",
        "cleared",
        "loaded 3 messages",
        "cannot read the session",
    ):
        assert words in result.err, words
    assert "Traceback" not in result.err


def test_a_full_context_says_what_to_do(run: Run) -> None:
    model = fakes.fake_model(context=64)
    result = run("chat", model=model, stdin=b"x\n" + b"y" * 100 + b"\n/clear\nz\n")
    assert "the context is full" in result.err
    assert "/clear" in result.err
    assert len(result.out.splitlines()) == 2


# The editor asks a terminal for the position of its cursor; ours does not answer.
NO_CPR = {"PROMPT_TOOLKIT_NO_CPR": "1"}
READY = "\x1b[?2004h"  # it switches bracketed paste on before it reads


class Terminal:
    """A program behind a pseudo-terminal."""

    def __init__(self, arguments: list[str], cache: Path, **variables: str) -> None:
        import pty

        self.process, self.handle = pty.fork()
        if self.process == 0:
            os.chdir(ROOT)
            environment = {**os.environ, "EDGERUN_CACHE": str(cache), "TERM": "xterm", **NO_CPR}
            environment |= variables
            os.execve(sys.executable, [sys.executable, "-c", SLOW, *arguments], environment)
        self.screen = ""
        self.seen = ""

    def expect(self, words: str, seconds: float = 100) -> None:
        """Waits for words and forgets everything up to them."""
        deadline = time.monotonic() + seconds
        while words not in self.screen:
            self.read(deadline)
        self.screen = self.screen.split(words, 1)[1]

    def expect_more(self, seconds: float = 100) -> None:
        """Waits for any output after what was expected last."""
        deadline = time.monotonic() + seconds
        while not self.screen:
            self.read(deadline)

    def read(self, deadline: float) -> None:
        """Adds what there is to the screen."""
        assert time.monotonic() < deadline, self.screen
        if select.select([self.handle], [], [], 0.1)[0]:
            try:
                text = os.read(self.handle, 4096).decode("utf-8", "replace")
            except OSError as error:
                raise AssertionError(f"the program ended: {self.screen}") from error
            self.screen += text
            self.seen += text

    def send(self, keys: str) -> None:
        os.write(self.handle, keys.encode())

    def wait(self) -> int:
        try:
            while os.read(self.handle, 4096):
                pass
        except OSError:
            pass
        os.close(self.handle)
        return os.waitstatus_to_exitcode(os.waitpid(self.process, 0)[1])


@pytest.mark.skipif(sys.platform == "win32", reason="pseudo-terminals")
@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")  # fork beside threads
def test_a_terminal_that_can_only_print_gets_no_escapes(tmp_path: Path) -> None:
    terminal = Terminal(["chat", "-n", "3"], tmp_path, TERM="dumb")
    terminal.expect("> ")
    terminal.send("hello\r")
    terminal.expect("\r\n")
    terminal.expect("> ")
    assert "\x1b" not in terminal.seen
    terminal.send("\x04")
    assert terminal.wait() == 0


@pytest.mark.skipif(sys.platform == "win32", reason="pseudo-terminals")
@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")  # fork beside threads
def test_ctrl_c_stops_the_reply_and_keeps_the_chat(tmp_path: Path) -> None:
    terminal = Terminal(["chat"], tmp_path)
    terminal.expect(READY)
    terminal.send("hello\r")
    terminal.expect("\x1b[?2004l")
    terminal.expect_more()
    terminal.send("\x03")
    terminal.expect("[stopped]")
    terminal.expect(READY)
    terminal.send("/set max_tokens 3\r")
    terminal.expect("max_tokens         3")
    terminal.expect(READY)
    terminal.send("one\x1b\rtwo\r")  # Alt-Enter
    terminal.expect(READY)
    terminal.send("/stats\r")
    terminal.expect("first token")
    terminal.expect(READY)
    terminal.send("\x04")
    assert terminal.wait() == 0
    assert "+one\n+two\n" in (tmp_path / "chat_history").read_text()
