"""A process that has everything loaded and forks a child for every few cases.

It reads requests from its standard input, one JSON object a line, ``{"kind": "onnx", "seeds": [1,
2], "plant": ""}``, and answers each with one line, a list of outcomes. The children run under
limits, so that nothing that a case does outlives it.
"""

from __future__ import annotations

import gc
import json
import logging
import os
import resource
import select
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import IO, Any

from tests.fuzz import case, ends, plants, sources
from tests.fuzz.case import FAILED, Outcome
from tests.fuzz.files import write_files
from tests.fuzz.kinds import KINDS
from tests.fuzz.watch import WATCH

BATCH = 32  # cases a child, which starts a sandbox of its own
CASE_CPU_S = 20.0
CASE_WALL_S = 120.0  # for a machine that is busy with other things
POLL_S = 0.02
TERMINAL = os.dup(2)
ADDRESS_BYTES = 32 << 30  # the last resort: room that is only reserved counts, too
KILL_BYTES = 1 << 30


def main() -> None:
    """Serves requests until the input ends."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # nothing that a case prints may look like an answer
    WATCH.install()
    logging.disable(logging.ERROR)  # what is refused is in the outcome
    with tempfile.TemporaryDirectory(prefix="edgerun-fuzz-") as name:
        folder = Path(name)
        warm_up(folder)
        gc.freeze()  # or every child looks through what all share, and copies its pages
        answers.write("ready\n")
        answers.flush()
        for line in sys.stdin:
            request = json.loads(line)
            outcomes = serve(folder, request["kind"], request["seeds"], request["plant"])
            answers.write(json.dumps([asdict(outcome) for outcome in outcomes]) + "\n")
            answers.flush()


def warm_up(folder: Path) -> None:
    """Runs valid inputs of every kind, so that children find code and kernels in memory."""
    runs = [
        (sources.bundle, ends.generate, number, seed)
        for number in range(len(sources.BUNDLES))
        for seed in range(len(ends.STORAGE) + 1)  # one with ordinary memory, then each storage
    ]
    runs += [
        (kind.source, kind.end, number, number)
        for kind in KINDS.values()
        for number in range(len(sources.CHECKPOINTS))
    ]
    for source, end, number, seed in dict.fromkeys(runs):
        write_files(source(number), folder / "warm")
        end(folder / "warm", seed)
        shutil.rmtree(folder / "warm")


def serve(folder: Path, kind: str, seeds: Sequence[int], plant: str) -> list[Outcome]:
    """Runs cases; one that takes its child down with it is run again alone, to be sure of it."""
    outcomes: list[Outcome] = []
    waiting = list(seeds)
    while waiting:
        batch, waiting = waiting[:BATCH], waiting[BATCH:]
        ended, how = _run_child(folder, kind, batch, plant)
        outcomes += ended
        if not how:
            continue
        left = batch[len(ended) :]
        waiting = left[1:] + waiting
        alone, again = _run_child(folder, kind, left[:1], plant)
        if again or (alone and alone[0].result == FAILED):
            outcomes += alone or [Outcome(kind, left[0], FAILED, again)]
        else:  # an earlier case of the batch did the damage
            together = ", ".join(str(seed) for seed in batch[: len(ended) + 1])
            outcomes.append(Outcome(kind, left[0], FAILED, f"{how}, after seeds {together}"))
    return outcomes


def _run_child(
    folder: Path, kind: str, seeds: Sequence[int], plant: str
) -> tuple[list[Outcome], str]:
    """Runs cases in one child; returns their outcomes, and how the child failed if it did."""
    readable, writable = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(readable)
        try:
            with os.fdopen(writable, "w", buffering=1) as answers:
                _child(folder, kind, seeds, plant, answers)
            os._exit(0)
        except BaseException:  # in the harness itself
            os.write(TERMINAL, traceback.format_exc().encode())
        os._exit(3)
    os.close(writable)
    lines, reason = [], ""
    with os.fdopen(readable, "rb", buffering=0) as answers:
        for line in _lines(answers, child):
            if isinstance(line, str):
                reason = line
                os.kill(child, signal.SIGKILL)
                break
            lines.append(line)
    _, status = os.waitpid(child, 0)
    shutil.rmtree(folder / "case", ignore_errors=True)
    outcomes = [Outcome(**json.loads(line)) for line in lines if line.endswith(b"}")]
    return outcomes, reason or _ending(status)


def _child(folder: Path, kind: str, seeds: Sequence[int], plant: str, answers: IO[str]) -> None:
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_AS, (ADDRESS_BYTES, ADDRESS_BYTES))
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    case.hide_terminal()
    case.refuse_to_compile()
    with plants.planted(plant):
        for seed in seeds:
            limit = plants.HANG_CPU_S if plant == "hang" else CASE_CPU_S
            signal.setitimer(signal.ITIMER_PROF, limit)
            outcome = case.run_case(kind, seed, folder)
            answers.write(json.dumps(asdict(outcome)) + "\n")


def _lines(answers: Any, child: int) -> Iterator[bytes | str]:
    """Lines as they come; a text instead says why the child must end."""
    pending, since = b"", time.monotonic()
    while True:
        ready, _, _ = select.select([answers], [], [], POLL_S)
        if ready:
            piece = answers.read(1 << 16)
            if not piece:
                return
            *whole, pending = (pending + piece).split(b"\n")
            yield from whole
            since = time.monotonic() if whole else since
        elif _resident(child) > KILL_BYTES + _resident(os.getpid()):
            yield f"took more than {KILL_BYTES >> 20} MB"
        elif time.monotonic() - since > CASE_WALL_S:
            yield f"took more than {CASE_WALL_S:.0f} s"


def _resident(process: int) -> int:
    try:
        pages = int(Path(f"/proc/{process}/statm").read_text().split()[1])
    except (OSError, IndexError):
        return 0
    return pages * resource.getpagesize()


def _ending(status: int) -> str:
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        if number == signal.SIGPROF:
            return "took too much processor time"
        return f"ended by {signal.Signals(number).name}"
    code = os.waitstatus_to_exitcode(status)
    return f"ended with code {code}" if code else ""


if __name__ == "__main__":
    main()
