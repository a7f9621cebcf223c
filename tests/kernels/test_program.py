"""Programs and their threads: order, completeness under stress, sleep, end, fork and exit."""

from __future__ import annotations

import dataclasses
import gc
import os
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from edgerun.kernels.run import program as program_module
from edgerun.kernels.run.instructions import Instruction, Loaded, fences, instruction, last_of_group
from edgerun.kernels.run.program import Program, ThreadTeam

ONE, ROWS = 0, 1
WIDTH = 24


def step(reads: str = "", writes: str = "") -> Instruction:
    """An instruction of which only the buffers matter; a letter names one."""
    empty: NDArray[np.int64] = np.zeros(0, np.int64)
    return Instruction(Loaded(0), empty, (), 0, 1, 1, frozenset(reads), frozenset(writes), "")


def adding(
    a: NDArray[np.float32], b: NDArray[np.float32], out: NDArray[np.float32], names: str
) -> Instruction:
    """``out = a + b`` for as many rows as the frame says; a chunk is a row."""
    fields = {"left": a.ctypes.data, "right": b.ctypes.data, "out": out.ctypes.data}
    return instruction(
        "add",
        params={"lanes": 8},
        fields=fields | {"rows": 0, "width": WIDTH},
        chunks=(ROWS, 1, 1),
        reads=set(names[:2]),
        writes={names[2]},
        at_once=8,
    )


def chain(rows: int) -> tuple[Program, list[NDArray[np.float32]]]:
    """x += 1; y = x + x; z = y + x; all three depend on one another, w += 1 on nothing."""
    x, y, z, w, ones = (np.zeros((rows, WIDTH), np.float32) for _ in range(5))
    ones[:] = 1
    steps = [
        adding(x, ones, x, "x1x"),
        adding(w, ones, w, "w1w"),
        adding(x, x, y, "xxy"),
        adding(y, x, z, "yxz"),
    ]
    return Program(steps, [x, y, z, w, ones]), [x, y, z, w]


def test_independent_steps_do_not_wait() -> None:
    assert fences([step("a", "b"), step("a", "c"), step("a", "d")]) == [False, False, True]


@pytest.mark.parametrize(
    "second", [step("b", "c"), step("c", "b"), step("c", "a")], ids=["read", "write", "overwrite"]
)
def test_dependent_steps_wait(second: Instruction) -> None:
    assert fences([step("a", "b"), second]) == [True, True]


def test_a_wait_covers_all_steps_before_it() -> None:
    steps = [step("a", "b"), step("a", "c"), step("b", "d"), step("c", "e")]
    assert fences(steps) == [False, True, False, True]
    assert last_of_group(steps) == [1, 1, 3, 3]


@pytest.mark.parametrize("threads", [1, 2, 3, 4])
def test_every_chunk_runs_once_whatever_the_rows(threads: int) -> None:
    team = ThreadTeam(threads)
    rng = np.random.default_rng(threads)
    programs = [chain(40), chain(7), chain(300)]  # of many rows several are taken at once
    expected = [[np.zeros_like(array) for array in arrays] for _, arrays in programs]
    for turn in range(4000):
        which = 0 if turn % 16 else 1 + turn // 16 % 2
        program, arrays = programs[which]
        rows = int(rng.integers(0, len(arrays[0]) + 1))
        program.frame[ROWS] = rows
        team.run(program)
        x, y, z, w = (array[:rows] for array in expected[which])
        x += 1
        w += 1
        y[:] = x + x
        z[:] = y + x
    team.close()
    for (_, arrays), expected_arrays in zip(programs, expected, strict=True):
        for actual, right in zip(arrays, expected_arrays, strict=True):
            np.testing.assert_array_equal(actual, right)


@pytest.mark.parametrize("threads", [1, 2, 4])
def test_what_is_one_row_is_done_once_between_what_is_shared(threads: int) -> None:
    """``s`` is of one row, reads what many wrote before, and is read before they write again."""
    x, ones, s, t, u = (np.zeros((40, WIDTH), np.float32) for _ in range(5))
    ones[:] = 1
    shared, alone = adding(x, ones, x, "x1x"), adding(x, s, s, "xss")
    steps = alone, adding(s, t, t, "stt"), adding(u, ones, u, "u1u")
    *single, other = (dataclasses.replace(each, size=ONE) for each in steps)
    before = [other] * 1000  # long enough that whoever did not wait for it would be seen
    program = Program(
        [single[1], shared, *before, *single, shared, single[0], *before, single[0]],
        [x, ones, s, t, u],
    )
    program.frame[ONE] = 1
    team, rng = ThreadTeam(threads), np.random.default_rng(threads)
    last = total = of_totals = 0
    for turn in range(3000):
        if turn % 50 == 0:  # float32 counts no further than 2**24
            x[:], s[:], t[:], last, total, of_totals = 0, 0, 0, 0, 0, 0
        rows = program.frame[ROWS] = int(rng.integers(0, 41)) if turn % 4 else 1
        team.run(program)
        assert program.waits() == (2 if rows > 1 else 0)
        of_totals += total
        last += int(rows > 0)
        total += last
        of_totals += total
        last += int(rows > 0)
        total += 2 * last
        assert (x[0] == last).all()
        assert (s[0] == total).all()
        assert (t[0] == of_totals).all()
    team.close()


def test_runs_from_several_callers_do_not_mix() -> None:
    team = ThreadTeam(2)
    programs = [chain(5) for _ in range(3)]

    def call(program: Program) -> None:
        program.frame[ROWS] = 5
        for _ in range(300):
            team.run(program)

    callers = [threading.Thread(target=call, args=(program,)) for program, _ in programs]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    team.close()
    assert all((arrays[0] == 300).all() for _, arrays in programs)


def all_sleep(team: ThreadTeam) -> bool:
    """Whether all workers fall asleep; how soon depends on who else wants the cores."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        with team._asleep:
            if team._sleeping == len(team._workers):
                return True
        time.sleep(0.01)
    return False


def test_workers_sleep_when_idle() -> None:
    team = ThreadTeam(3)
    program, _ = chain(3)
    for _ in range(3):
        team.run(program)
        assert all_sleep(team)
    team.close()


def test_workers_sleep_when_their_run_was_settled_before_they_saw_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looks = threading.Semaphore(0)
    native = program_module.native_function

    def counting(name: str, arguments: int, *, result: bool) -> Callable[..., Any]:
        function = native(name, arguments, result=result)

        def look(*words: int) -> int:
            looks.release()
            return int(function(*words))

        return look if name == "runner-worker" else function

    monkeypatch.setattr(program_module, "native_function", counting)
    team = ThreadTeam(3)
    program, (x, *_) = chain(3)
    program.frame[ROWS] = 3
    team.run(program)
    assert all_sleep(team)
    while looks.acquire(blocking=False):
        pass
    master, team._master = team._master, lambda *_: None  # a run that no worker gets to see
    team.run(program)
    team._master = master
    for _ in range(8):  # they are awake, each of them looks again and again
        assert looks.acquire(timeout=60)
    team.settle()
    assert all_sleep(team)
    team.run(program)
    assert (x == 2).all()
    assert all_sleep(team)
    team.close()


def test_workers_sleep_when_a_run_was_interrupted_before_it_began(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def interrupted(*_: int) -> None:
        raise KeyboardInterrupt

    team = ThreadTeam(3)
    program, (x, *_) = chain(3)
    program.frame[ROWS] = 3
    team.run(program)
    master, team._master = team._master, interrupted
    with pytest.raises(KeyboardInterrupt):
        team.run(program)
    assert all_sleep(team)
    team._master = master
    team.run(program)
    assert (x == 2).all()
    team.close()


def test_a_run_may_be_interrupted_wherever_a_function_begins_or_ends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Where Python calls the handlers of signals, Ctrl-C's among them."""
    monkeypatch.setattr(program_module, "MOST_PROGRAMS", 1)

    class Interrupt(BaseException):
        pass

    (before_it, _), (program, _) = chain(2), chain(3)
    interrupted, place = True, 0
    while interrupted:
        team, left = ThreadTeam(2), place
        team.run(before_it)

        def trace(frame: object, event: str, _: object) -> object:
            nonlocal left
            if event != "line":
                left -= 1
                if left < 0:
                    raise Interrupt
            return trace

        before = sys.gettrace()
        sys.settrace(trace)  # type: ignore[arg-type]
        try:
            team.run(program)
            interrupted = False
        except Interrupt:
            place += 1
        finally:
            sys.settrace(before)
        closing = threading.Thread(target=team.close, daemon=True)
        closing.start()
        closing.join(60)
        assert not closing.is_alive(), f"after an interrupt at place {place}"
    assert place > 4


def test_closed_team_has_no_threads_and_refuses_to_run() -> None:
    team = ThreadTeam(3)
    program, _ = chain(3)
    team.run(program)
    workers = list(team._workers)
    team.close()
    team.close()
    assert not any(worker.is_alive() for worker in workers)
    with pytest.raises(RuntimeError, match="closed"):
        team.run(program)


def test_workers_may_close_their_own_team(monkeypatch: pytest.MonkeyPatch) -> None:
    workers = set()
    native = program_module.native_function

    def closing(name: str, arguments: int, *, result: bool) -> Callable[..., Any]:
        function = native(name, arguments, result=result)

        def look(*words: int) -> int:
            workers.add(threading.current_thread())
            last = int(function(*words))
            team.close()  # as the garbage collector would, which runs anywhere
            return last

        return look if name == "runner-worker" else function

    monkeypatch.setattr(program_module, "native_function", closing)
    team = ThreadTeam(3)
    program, _ = chain(3)
    team.run(program)
    deadline = time.monotonic() + 60
    while len(workers) < 2 and time.monotonic() < deadline:
        time.sleep(0.01)
    for worker in workers:
        worker.join(60)
        assert not worker.is_alive()


@pytest.mark.parametrize("threads", [1, 2])
def test_native_code_is_found_once(threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    native = program_module.native_function

    def noting(name: str, arguments: int, *, result: bool) -> Callable[..., Any]:
        asked.append(name)
        return native(name, arguments, result=result)

    monkeypatch.setattr(program_module, "native_function", noting)
    team = ThreadTeam(threads)
    program, _ = chain(3)
    for _ in range(3):
        team.run(program)
    team.close()
    assert sorted(asked) == ["runner-master", "runner-worker"]


def test_a_team_keeps_programs_that_nobody_else_has_until_it_is_settled() -> None:
    team, programs = ThreadTeam(2), []
    for rows in (2, 3):
        program, _ = chain(rows)
        team.run(program)
        programs.append(weakref.ref(program))
    del program
    gc.collect()
    assert all(each() is not None for each in programs)
    team.settle()
    gc.collect()
    assert all(each() is None for each in programs)
    team.close()


@pytest.mark.parametrize("most", [2, 3])
def test_programs_that_take_turns_are_kept_up_to_a_number(
    most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(program_module, "MOST_PROGRAMS", most)
    team, chains = ThreadTeam(3), [chain(rows) for rows in (2, 3, 5)]
    runs = [0, 0, 0]
    for program, values in chains:
        program.frame[ROWS] = len(values[0])
    for turn in range(300):
        chosen = turn * turn // 7 % 3
        runs[chosen] += 1
        team.run(chains[chosen][0])
        assert len(team._programs) <= most
    for count, (_, (x, y, z, w)) in zip(runs, chains, strict=True):
        for values, right in ((x, count), (y, 2 * count), (z, 3 * count), (w, count)):
            assert (values == right).all()
    team.close()


SCRIPT = """
import os, sys
from tests.kernels.test_program import ROWS, ThreadTeam, chain
team = ThreadTeam(3)
program, (x, *_) = chain(64)
program.frame[ROWS] = 64
team.run(program)
if sys.argv[1] == "fork":
    child = os.fork()
    team.run(program)
    assert (x == 2).all()
    assert all(worker.is_alive() for worker in team._workers)
    if child:
        sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
print("done")
"""


@pytest.mark.parametrize("how", ["exit", "fork"])
def test_process_ends_with_a_team_left_open(how: str) -> None:
    if how == "fork" and not hasattr(os, "fork"):
        pytest.skip("no fork on this system")
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", SCRIPT, how],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr
