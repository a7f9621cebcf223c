"""Keys that are typed while a reply streams, and Ctrl-Z at the prompt."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

import pytest

from edgerun.cli.conversation.keyboard import LOCAL, typing_waits
from tests.cli.conversation.terminal import READY, STREAMING, Terminal

termios = pytest.importorskip("termios", reason="pseudo-terminals")
pytestmark = pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")  # fork


def test_what_is_typed_while_a_reply_streams_waits_for_the_prompt(tmp_path: Path) -> None:
    terminal = Terminal(["chat"], tmp_path)
    terminal.expect(READY)
    terminal.send("hello\r")
    terminal.expect(STREAMING)
    terminal.expect_more()
    terminal.send("\u00e9\u00e9next onf\x7fe\x1b\rtwo")  # Backspace, Alt-Enter
    terminal.seen = ""
    time.sleep(0.3)
    terminal.send("\x03")
    terminal.expect("[stopped]")
    assert "\u00e9" not in terminal.seen
    terminal.expect(READY)
    terminal.expect("next one")
    terminal.send("\r")
    terminal.expect(STREAMING)
    terminal.expect_more()
    terminal.send("\x04")  # Ctrl-D: at the prompt after the reply it quits
    terminal.send("\x03")
    assert terminal.wait() == 0
    assert "+\u00e9\u00e9next one\n+two\n" in (tmp_path / "chat_history").read_text()


def test_what_is_pasted_while_a_reply_streams_is_one_message(tmp_path: Path) -> None:
    """Its lines are not sent one by one, and none of them is a command."""
    terminal = Terminal(["chat"], tmp_path)
    terminal.expect(READY)
    terminal.send("hello\r")
    terminal.expect(STREAMING)  # which is when a terminal marks what is pasted
    terminal.expect_more()
    terminal.send("\x1b[200~one\r/quit\rtwo\x1b[201~")
    time.sleep(0.3)
    terminal.send("\x03")
    terminal.expect(READY)
    terminal.expect("two")
    terminal.send("\r")
    terminal.expect(STREAMING)
    terminal.expect_more()
    terminal.send("\x03")
    terminal.expect(READY)
    terminal.send("/quit\r")
    assert terminal.wait() == 0
    assert "+one\n+/quit\n+two\n" in (tmp_path / "chat_history").read_text()
    marked, unmarked = (terminal.seen.rfind(f"\x1b[?2004{end}") for end in "hl")
    assert marked < unmarked  # the terminal is left as it was


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_who_ends_a_chat_in_mid_reply_leaves_the_terminal_as_it_was(number: int) -> None:
    import pty

    handle, terminal = pty.openpty()
    before = termios.tcgetattr(terminal)
    child = os.fork()
    if child == 0:
        signal.signal(number, signal.SIG_DFL)  # nohup would have it ignored
        sys.stdin = os.fdopen(terminal)
        with typing_waits():
            os.kill(os.getpid(), number)
            time.sleep(10)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    assert os.WTERMSIG(status) == number
    assert termios.tcgetattr(terminal) == before
    os.close(handle)
    os.close(terminal)


def test_ctrl_z_at_the_prompt_suspends(tmp_path: Path) -> None:
    terminal = Terminal(["chat"], tmp_path, shell='"$@"; echo "stopped: $?"; fg >/dev/null')
    terminal.expect(READY)
    terminal.send("hel")
    terminal.expect("l")
    terminal.send("\x1a")
    terminal.expect(f"stopped: {128 + signal.SIGTSTP}")
    terminal.expect("hel")
    terminal.send("lo\r")
    terminal.expect(STREAMING)
    terminal.expect_more()
    terminal.send("\x03")
    terminal.expect(READY)
    terminal.send("\x04")
    assert terminal.wait() == 0
    assert "+hello\n" in (tmp_path / "chat_history").read_text()


def test_a_reply_that_was_suspended_goes_on_as_quietly(tmp_path: Path) -> None:
    script = 'stty sane; "$@"; echo "stopped: $?"; stty sane; fg >/dev/null'
    terminal = Terminal(["chat"], tmp_path, shell=script)
    terminal.expect(READY)
    terminal.send("hello\r")
    terminal.expect(STREAMING)
    terminal.expect_more()
    terminal.send("\x1a")
    terminal.expect(f"stopped: {128 + signal.SIGTSTP}")
    terminal.expect_more()
    time.sleep(0.3)
    terminal.seen = ""
    terminal.send("\u00e9\u00e9")
    time.sleep(0.3)
    terminal.send("\x03")
    terminal.expect("[stopped]")
    assert "\u00e9" not in terminal.seen
    terminal.expect("\u00e9\u00e9")
    terminal.send("\x15\x04")
    assert terminal.wait() == 0


@pytest.mark.parametrize("term", ["xterm", "dumb"])
def test_the_terminal_is_as_before_whatever_happens(
    monkeypatch: pytest.MonkeyPatch, term: str
) -> None:
    master, handle = os.openpty()
    monkeypatch.setenv("TERM", term)
    before = termios.tcgetattr(handle)
    with os.fdopen(handle) as stream, os.fdopen(os.dup(handle), "w") as shown:
        monkeypatch.setattr("sys.stdin", stream)
        monkeypatch.setattr("sys.stderr", shown)
        for error in (KeyboardInterrupt, SystemExit):
            with pytest.raises(error), typing_waits():
                inside = termios.tcgetattr(handle)[LOCAL]
                assert not inside & termios.ECHO
                assert inside & termios.NOFLSH
                assert bool(inside & termios.ICANON) == (term == "dumb")
                raise error
            assert termios.tcgetattr(handle) == before
        with typing_waits():
            os.close(master)  # the terminal is closed
