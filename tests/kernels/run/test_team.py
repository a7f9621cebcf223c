"""Teams whose workers do not all begin: the system has no more threads, or Ctrl-C comes."""

from __future__ import annotations

import logging
import threading

import pytest

from edgerun.kernels.run.program import ThreadTeam
from tests.kernels.test_program import ROWS, chain

RUNS = 300


def fail_to_start(
    monkeypatch: pytest.MonkeyPatch, name: str, error: BaseException, *, begins: bool = False
) -> None:
    """Lets the start of a worker fail, once it has begun or before."""
    start = threading.Thread.start

    def fail(self: threading.Thread) -> None:
        if self.name != name or begins:
            start(self)
        if self.name == name:
            raise error

    monkeypatch.setattr(threading.Thread, "start", fail)


def check_runs(team: ThreadTeam) -> None:
    """Whether programs run to their end, and are let go."""
    program, (x, y, z, w) = chain(40)
    program.frame[ROWS] = 40
    for _ in range(RUNS):
        team.run(program)
    for values, right in ((x, RUNS), (y, 2 * RUNS), (z, 3 * RUNS), (w, RUNS)):
        assert (values == right).all()
    team.settle()
    assert not team._programs


def close(team: ThreadTeam) -> None:
    workers = [*team._workers]
    team.close()
    assert not any(worker.is_alive() for worker in workers)


@pytest.mark.parametrize("there", [0, 1, 2])
def test_those_that_are_there_do_the_work_of_those_that_are_not(
    there: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    fail_to_start(monkeypatch, f"edgerun-{there + 1}", RuntimeError("can't start new thread"))
    team = ThreadTeam(4)
    check_runs(team)
    assert len(team._workers) == there
    messages = [record.getMessage() for record in caplog.records]
    assert messages == [f"{there + 1} threads compute, not 4"]  # once, not with each run
    close(team)


@pytest.mark.parametrize("begins", [False, True])
@pytest.mark.parametrize("goes_on", [False, True])
def test_ctrl_c_while_workers_begin_leaves_a_team_that_works_and_ends(
    begins: bool, goes_on: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    team = ThreadTeam(4)
    program, _ = chain(3)
    with monkeypatch.context() as patch:
        fail_to_start(patch, "edgerun-2", KeyboardInterrupt(), begins=begins)
        with pytest.raises(KeyboardInterrupt):
            team.run(program)
    if goes_on:
        check_runs(team)
        names = [worker.name for worker in team._workers if worker.is_alive()]
        assert names == ["edgerun-1", *["edgerun-2"] * begins, "edgerun-3"]
    close(team)
