"""Native work that the caller can give up."""

from __future__ import annotations

import os
import signal
import threading

import pytest

from edgerun.limited import run_limited
from tests.support.interrupts import obeyed_ctrl_c


def test_results_and_errors_are_those_of_the_work() -> None:
    assert run_limited(lambda: 7) == 7
    assert run_limited(lambda: 7, 60) == 7
    with pytest.raises(ZeroDivisionError):
        run_limited(lambda: 1 / 0)
    with pytest.raises(TimeoutError, match="mine"):
        run_limited(lambda: exec("raise TimeoutError('mine')"))


def test_work_that_takes_too_long_is_told_to_stop() -> None:
    stopped = threading.Event()
    with pytest.raises(TimeoutError, match=r"longer than 0\.01 s"):
        run_limited(lambda: stopped.wait(60), 0.01, stopped.set)
    assert stopped.is_set()


def test_ctrl_c_does_not_wait_for_the_work() -> None:
    stopped = threading.Event()

    def work() -> None:
        os.kill(os.getpid(), signal.SIGINT)  # comes while the caller waits, however slow all is
        stopped.wait(60)

    with pytest.raises(KeyboardInterrupt), obeyed_ctrl_c():
        run_limited(work, stop=stopped.set)
    assert stopped.is_set()
