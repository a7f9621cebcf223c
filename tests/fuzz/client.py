"""Spreads cases over servers, one for each core, and collects their outcomes."""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from types import TracebackType

from tests.fuzz.case import FAILED, UNCOMPILED, Outcome
from tests.fuzz.watch import ROOT

CHUNK = 32  # cases a request
MOST_SERVERS = 8


@dataclass
class Summary:
    """What became of many cases."""

    outcomes: list[Outcome] = field(default_factory=list)

    @property
    def failures(self) -> list[Outcome]:
        """Cases that did what none may do."""
        return [outcome for outcome in self.outcomes if outcome.result == FAILED]

    @property
    def uncompiled(self) -> list[Outcome]:
        """Cases whose kernels were in no cache."""
        return [outcome for outcome in self.outcomes if outcome.result == UNCOMPILED]

    def has_failed_of(self, detail: str) -> bool:
        """Whether a case failed, and says so in these words."""
        return any(detail in outcome.detail for outcome in self.failures)

    def count(self, result: str) -> int:
        """Cases with a result."""
        return sum(outcome.result == result for outcome in self.outcomes)

    def __str__(self) -> str:
        counts = dict(Counter(outcome.result for outcome in self.outcomes))
        peak = max((outcome.peak_bytes for outcome in self.outcomes), default=0)
        slowest = max((outcome.seconds for outcome in self.outcomes), default=0.0)
        return f"{len(self.outcomes)} cases {counts}, peak {peak >> 20} MB, slowest {slowest:.2f} s"


class Servers:
    """Some servers, started when first needed."""

    def __init__(self, count: int | None = None) -> None:
        """Takes how many; one for each core unless given."""
        beside = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))  # others like this process
        usable = len(os.sched_getaffinity(0)) // beside
        self._count = count or max(1, min(usable, MOST_SERVERS))
        self._servers: list[subprocess.Popen[str]] = []

    def run(self, kind: str, seeds: Iterable[int], plant: str = "", until: str = "") -> Summary:
        """Runs cases of a kind, in any order; no more of them once one fails of ``until``."""
        while len(self._servers) < self._count:  # the first compiles what no cache has yet
            self._servers.append(_start())
        chunks: queue.SimpleQueue[Sequence[int]] = queue.SimpleQueue()
        waiting = list(seeds)
        for first in range(0, len(waiting), CHUNK):
            chunks.put(waiting[first : first + CHUNK])
        summary, faults = Summary(), list[BaseException]()

        def work(server: subprocess.Popen[str]) -> None:
            try:
                while not (until and summary.has_failed_of(until)):
                    some = chunks.get_nowait()
                    summary.outcomes.extend(_ask(server, kind, some, plant))
            except queue.Empty:
                return
            except BaseException as error:  # for the thread that waits
                faults.append(error)

        threads = [threading.Thread(target=work, args=(server,)) for server in self._servers]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if faults:
            raise faults[0]
        summary.outcomes.sort(key=lambda outcome: outcome.seed)
        return summary

    def __enter__(self) -> Servers:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for server in self._servers:
            assert server.stdin is not None
            server.stdin.close()
        for server in self._servers:
            server.wait(30)
            assert server.stdout is not None
            server.stdout.close()


def _start() -> subprocess.Popen[str]:
    path = os.pathsep.join([str(ROOT), str(ROOT / "export"), str(ROOT / "hw")])
    server = subprocess.Popen(
        [sys.executable, "-m", "tests.fuzz.server"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": path},
    )
    assert server.stdout is not None
    if server.stdout.readline() != "ready\n":
        raise RuntimeError("a server of hostile files does not start")
    return server


def _ask(
    server: subprocess.Popen[str], kind: str, seeds: Sequence[int], plant: str
) -> list[Outcome]:
    assert server.stdin is not None
    assert server.stdout is not None
    server.stdin.write(json.dumps({"kind": kind, "seeds": list(seeds), "plant": plant}) + "\n")
    server.stdin.flush()
    answer = server.stdout.readline()
    if not answer:
        raise RuntimeError(f"the server of {kind} {seeds[0]}.. has ended")
    return [Outcome(**entry) for entry in json.loads(answer)]
