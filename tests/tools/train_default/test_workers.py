"""Processes that compute gradients. Needs torch."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from tests.tools.train_default.small_model import SMALL  # noqa: E402
from tools.train_default import workers as working  # noqa: E402
from tools.train_default.model import TernaryLM  # noqa: E402


def test_a_process_that_ends_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(working, "PATIENCE", 0.1)
    workers = working.Workers(TernaryLM(SMALL), 1, 1.0, 0.0)
    (process,) = workers.processes
    process.kill()
    process.join()
    ids = np.zeros((1, 4), np.int64)
    with pytest.raises(ChildProcessError, match="ended with code -9 .* from the last checkpoint"):
        workers.accumulate([(ids, ids)])


ALONE = """
import sys
import time
from tests.tools.train_default.small_model import SMALL
from tools.train_default import workers
from tools.train_default.model import TernaryLM

if __name__ == "__main__":
    group = workers.Workers(TernaryLM(SMALL), 1, 1.0, 0.0)
    print(group.processes[0].pid, flush=True)
    time.sleep(600)
"""


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_processes_live_through_a_signal_to_the_group_and_not_without_their_parent(
    tmp_path: Path,
) -> None:
    script = tmp_path / "alone.py"
    script.write_text(ALONE)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(["", *sys.path])}
    parent = subprocess.Popen(
        [sys.executable, script], stdout=subprocess.PIPE, env=environment, start_new_session=True
    )
    assert parent.stdout
    try:
        worker = int(parent.stdout.readline())
        deadline = time.monotonic() + 120
        while os.getpgid(worker) != worker and time.monotonic() < deadline:
            time.sleep(0.1)
        os.killpg(parent.pid, signal.SIGTERM)
        assert parent.wait(60) == -signal.SIGTERM
        assert is_alive(worker), "it was not its signal"
        while is_alive(worker) and time.monotonic() < deadline:
            time.sleep(0.2)
        assert not is_alive(worker)
    finally:
        parent.kill()
        parent.stdout.close()
