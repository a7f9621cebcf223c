"""A chat as a person has it, behind a pseudo-terminal."""

from __future__ import annotations

import os
import select
import sys
import time
from pathlib import Path

from tests.cli.test_main import ROOT, SLOW

# The editor asks a terminal for the position of its cursor; ours does not answer.
NO_CPR = {"PROMPT_TOOLKIT_NO_CPR": "1"}
# Pastes are marked while it reads, and again while a reply streams, which draws nothing at first.
READY = "\x1b[?2004h\x1b[?"
STREAMING = "\x1b[?2004l\x1b[?2004h"


class Terminal:
    """A program behind a pseudo-terminal."""

    def __init__(
        self, arguments: list[str], state: Path, shell: str = "", **variables: str
    ) -> None:
        """Starts it; ``shell`` is a script of ``sh`` that runs it as ``"$@"``."""
        import pty

        self.process, self.handle = pty.fork()
        if self.process == 0:
            os.chdir(ROOT)
            environment = {**os.environ, "EDGERUN_STATE": str(state), "TERM": "xterm", **NO_CPR}
            environment |= variables
            command = [sys.executable, "-c", SLOW, *arguments]
            if shell:  # which controls jobs, as a user's shell does
                command = ["/bin/sh", "-mc", shell, "sh", *command]
            os.execve(command[0], command, environment)
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
            while data := os.read(self.handle, 4096):
                self.seen += data.decode("utf-8", "replace")
        except OSError:
            pass
        os.close(self.handle)
        return os.waitstatus_to_exitcode(os.waitpid(self.process, 0)[1])
