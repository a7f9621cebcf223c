"""How many misses prefetch can hide at all: the product's rule, and oracles with the same link.

    python -m tools.bench.offload.hiding [TRACE ...] [--room 0.25 0.5] [--idle 0.02 0.333 0.5]
        [--tokens 1500] [--standin] [--upload-ms 2]

A trace is replayed token by token and layer by layer. All layers share one cache; every layer
computes for the same time, and what it lacks has to come over one link, one upload at a time, of
equal size, each to its end. The time that layers compute is such that with LRU alone the link
idles a given share of the time. A miss is **waited for** if its upload has not ended when its layer
could begin; one that is under way then counts, whatever is left of it.

Guesses are made when a layer begins to compute, and uploaded while the link has nothing else to do,
the nearest first. What they find is modelled by a recall for each distance. **Oracles** know what
the next layers need, in the same token or without end; the last one also evicts what is needed
farthest in the future (Belady). No prefetcher that looks no farther than an oracle does can have
fewer misses than it by more than the order of uploads is worth.

With ``--standin`` uploads go through the stand-in's own link (its thread, its token bucket) and
layers pause instead of computing; without, everything is simulated. No figure is about any GPU.
"""

from __future__ import annotations

import argparse
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import numpy as np

from edgerun.backends.cpu.experts.prefetch import Prefetch
from edgerun.offload.standin.link import Link, Upload
from edgerun.offload.trace_file import NO_EXPERT, read_trace

Entry = tuple[int, int]  # layer, expert
Steps = list[tuple[Entry, ...]]
TRACES = Path(__file__).parent.parent / "traces"
GATES = (0.74, 0.67)  # recall one and two layers ahead, of the small trained mixture
UPLOAD_BYTES = 1 << 20
ENDLESS, FAR = 1 << 10, 1 << 40
COLUMNS = ["room", "link idles with LRU", "prefetch", "misses waited for", "bytes", "time waited"]
COLUMNS += ["time", "link idles"]


@dataclass(frozen=True)
class Rule:
    """Who foresees what.

    Attributes:
        title: of it.
        reach: layers ahead that are guessed.
        recall: of guesses, by how far ahead they look; of what is needed, an oracle has all.
        is_ours: whether to upload a guess is decided as for reads from a disk.
        is_across: whether guesses go on beyond the token.
        is_belady: whether the expert leaves that is needed farthest in the future.
    """

    title: str
    reach: int = 0
    recall: tuple[float, ...] = ()
    is_ours: bool = False
    is_across: bool = False
    is_belady: bool = False


LRU = Rule("none, LRU")
RULES = (
    LRU,
    Rule("ours, gates as measured", 2, GATES, is_ours=True),
    Rule("ours, recall 0.95 and 0.90", 2, (0.95, 0.90), is_ours=True),
    *(Rule(f"oracle of {reach} layers", reach) for reach in (1, 2, 3)),
    Rule("oracle of 8 layers, of later tokens, too", 8, is_across=True),
    Rule("the same, and Belady's evictions", 8, is_across=True, is_belady=True),
)


class Line(Protocol):
    """A clock, and a link that uploads one expert at a time."""

    upload_s: float

    def now(self) -> float:
        """Seconds."""

    def start(self) -> None:
        """Begins an upload; none is under way."""

    def until(self, end: float | None) -> bool:
        """Waits for the end of the upload under way, or for a time; whether an upload ended."""


@dataclass
class Simulated:
    """A time line on paper."""

    upload_s: float = 1.0
    _now: float = 0.0
    _ends: float = FAR

    def now(self) -> float:
        return self._now

    def start(self) -> None:
        self._ends = self._now + self.upload_s

    def until(self, end: float | None) -> bool:
        has_ended = end is None or self._ends <= end
        self._now = self._ends if end is None else min(self._ends, end)
        self._ends = FAR if has_ended else self._ends
        return has_ended


class OnStandin:
    """The stand-in's link; uploads are of ``UPLOAD_BYTES``."""

    def __init__(self, upload_s: float) -> None:
        self.upload_s = upload_s
        self._link = Link(UPLOAD_BYTES / upload_s, 0.0)
        self._memory = np.ones((2, UPLOAD_BYTES), np.uint8)
        self._has_ended, self._is_under_way = threading.Event(), False

    def now(self) -> float:
        return time.monotonic()

    def start(self) -> None:
        self._has_ended.clear()
        self._is_under_way = True
        self._link.start(Upload(*self._memory, lambda seconds: self._has_ended.set()))

    def until(self, end: float | None) -> bool:
        if not self._is_under_way:
            time.sleep(max(0.0, end - self.now()) if end is not None else 0.0)
            return False
        self._is_under_way = not self._wait(end)
        return not self._is_under_way

    def _wait(self, end: float | None) -> bool:
        return self._has_ended.wait(None if end is None else max(0.0, end - self.now()))

    def close(self) -> None:
        """Ends its thread."""
        self._link.close()


@dataclass
class Outcome:
    """What a replay came to: misses that a layer waited for, all uploads, seconds."""

    waited: int = 0
    uploads: int = 0
    waited_s: float = 0.0
    seconds: float = 0.0


@dataclass
class Replay:
    """Layers one after the other; see above."""

    steps: Steps
    slots: int
    compute_s: float
    rule: Rule
    line: Line
    experts: int
    outcome: Outcome = field(default_factory=Outcome)

    def __post_init__(self) -> None:
        """Begins with nothing in memory."""
        self._rng, self._prefetch = np.random.default_rng(0), Prefetch(1, self.line.now)
        self._worth: dict[Entry, int] = {}  # of what is there, what leaves first has least
        self._unused: set[Entry] = set()
        self._under_way: Entry | None = None
        self._began = 0.0
        self._guesses: dict[int, dict[int, list[Entry]]] = {}  # by step and distance
        self._absent: dict[tuple[int, int], set[Entry]] = {}
        self._next_use = dict(_next_uses(self.steps)) if self.rule.is_belady else {}

    def run(self) -> Outcome:
        """Replays all steps."""
        begin, number = self.line.now(), -1
        for number, needed in enumerate(self.steps):
            if needed[0][0] == self.steps[0][0][0]:
                self._prefetch.begin_run()
            self._prefetch.note_post(needed[0][0], self.line.now())
            self._judge(number, set(needed))
            self._fetch(number, needed)
            self._look_ahead(number)
            self._compute(number, set(needed))
        self.outcome.seconds = self.line.now() - begin
        return self.outcome

    def _fetch(self, number: int, needed: Sequence[Entry]) -> None:
        """Waits for what a layer lacks."""
        begin, missing = self.line.now(), [each for each in needed if each not in self._worth]
        self.outcome.waited += len(missing)
        while missing:
            if self._under_way is None:
                self._start(missing[0], number, set(needed))
            self.line.until(None)
            self._arrive(number, is_wish=self._under_way not in missing)
            missing = [each for each in missing if each not in self._worth]
        self.outcome.waited_s += self.line.now() - begin
        for entry in needed:
            self._worth[entry] = self._worth_at(number, entry)
        self._unused.difference_update(needed)

    def _compute(self, number: int, needed: set[Entry]) -> None:
        """Computes while the link uploads guesses."""
        end = self.line.now() + self.compute_s
        while True:
            wish = self._wish() if self._under_way is None else None
            if wish is not None and self._start(wish, number, needed):
                self._unused.add(wish)
                self._prefetch.guesses.wished += 1
            if not self.line.until(end):
                return
            self._arrive(number, is_wish=True)

    def _start(self, entry: Entry, number: int, needed: set[Entry]) -> bool:
        """Begins an upload if there is a slot for it."""
        if len(self._worth) >= self.slots:
            awaited = {
                each for kinds in self._guesses.values() for g in kinds.values() for each in g
            }
            free = [each for each in self._worth if each not in needed | awaited]
            if not free and entry in needed:
                free = [each for each in self._worth if each not in needed]
            if not free:
                return False
            leaves = min(free, key=lambda each: (each not in self._unused, self._worth[each]))
            del self._worth[leaves]
            self._unused.discard(leaves)
        self._under_way, self._began = entry, self.line.now()
        self.outcome.uploads += 1
        self.line.start()
        return True

    def _arrive(self, number: int, *, is_wish: bool) -> None:
        assert self._under_way is not None
        self._worth[self._under_way] = self._worth_at(number, self._under_way)
        self._prefetch.note_arrival(self.line.now() - self._began, is_wish=is_wish)
        self._under_way = None

    def _worth_at(self, number: int, entry: Entry) -> int:
        """By LRU the last use, by Belady the next one."""
        return -self._next_use.get((number, entry), FAR) if self.rule.is_belady else number

    def _look_ahead(self, number: int) -> None:
        for distance in range(1, self.rule.reach + 1):
            later = number + distance
            if later >= len(self.steps):
                return
            truth = self.steps[later]
            if not self.rule.is_across and truth[0][0] < self.steps[number][0][0] + distance:
                return
            if self.rule.is_ours and not self._prefetch.looks(distance):
                continue
            guess = self._guess(truth, distance)
            self._guesses.setdefault(later, {})[distance] = guess
            absent = {each for each in guess if each not in self._worth}
            self._absent[later, distance] = absent - {self._under_way}

    def _guess(self, truth: Sequence[Entry], distance: int) -> list[Entry]:
        if not self.rule.recall:
            return list(truth)
        right = [each for each in truth if self._rng.random() < self.rule.recall[distance - 1]]
        layer = truth[0][0]
        others = [(layer, int(expert)) for expert in self._rng.permutation(self.experts)]
        wrong = [each for each in others if each not in truth]
        return [*right, *wrong[: len(truth) - len(right)]]

    def _judge(self, number: int, needed: set[Entry]) -> None:
        """A layer has come: compares what was guessed with what it needs."""
        for distance in self._guesses.pop(number, {}):
            absent = self._absent.pop((number, distance))
            if not self.rule.is_ours:
                continue
            self._prefetch.note_guess(distance, len(absent), len(absent & needed))
            self._prefetch.guesses.wasted += len((absent - needed) & self._unused)

    def _wish(self) -> Entry | None:
        """What is to be uploaded next, of the nearest layer and the nearest guess."""
        for _, kinds in sorted(self._guesses.items()):
            distance = min(kinds)
            for entry in kinds[distance]:
                if entry not in self._worth and (
                    not self.rule.is_ours or self._prefetch.pays(distance)
                ):
                    return entry
        return None


def _next_uses(steps: Steps) -> Iterator[tuple[tuple[int, Entry], int]]:
    """Of each step and expert that is there after it, the next step that needs it."""
    coming: dict[Entry, int] = {}
    for number in range(len(steps) - 1, -1, -1):
        for entry, use in coming.items():
            yield (number, entry), use
        coming.update(dict.fromkeys(steps[number], number))


def steps_of(paths: Sequence[Path], tokens: int) -> tuple[Steps, int]:
    """What layers need, token by token, and how many experts a layer has."""
    steps: Steps = []
    experts = 0
    for path in paths:
        trace = read_trace(path)
        experts = max(experts, trace.experts)
        for token in trace.choices["expert"]:
            for layer, chosen in enumerate(token.tolist()):
                steps.append(tuple((layer, each) for each in chosen if each != NO_EXPERT))
    layers = 1 + max(step[0][0] for step in steps)
    return steps[: tokens * layers], experts


def compared(
    steps: Steps, experts: int, room: float, idle: float, *, upload_s: float | None = None
) -> Iterator[tuple[Rule, Outcome]]:
    """What each rule comes to; uploads go through the stand-in's link if they take a time."""
    layers = 1 + max(step[0][0] for step in steps)
    slots = round(room * experts) * layers
    misses = Replay(steps, slots, 0.0, LRU, Simulated(), experts).run().waited
    compute = idle / (1 - idle) * misses / len(steps)
    for rule in RULES:
        line = Simulated() if upload_s is None else OnStandin(upload_s)
        yield rule, Replay(steps, slots, compute * line.upload_s, rule, line, experts).run()
        if isinstance(line, OnStandin):
            line.close()


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints a table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("traces", type=Path, nargs="*", default=sorted(TRACES.glob("*.trace")))
    parser.add_argument("--room", type=float, nargs="+", default=[0.25, 0.5])
    parser.add_argument("--idle", type=float, nargs="+", default=[0.02, 1 / 3, 0.5])
    parser.add_argument("--tokens", type=int, default=1500)
    parser.add_argument("--standin", action="store_true", help="upload through the stand-in's link")
    parser.add_argument("--upload-ms", type=float, default=2.0)
    options = parser.parse_args(arguments)
    steps, experts = steps_of(options.traces, options.tokens)
    upload_s = 1e-3 * options.upload_ms if options.standin else None
    how = "measured" if options.standin else "simulated"
    sys.stdout.write(f"{how}\n| {' | '.join(COLUMNS)} |\n{'|---' * len(COLUMNS)}|\n")
    for room in options.room:
        for idle in options.idle:
            lru = None
            for rule, outcome in compared(steps, experts, room, idle, upload_s=upload_s):
                lru = outcome if lru is None else lru
                cells = [f"{room:.0%}", f"{idle:.0%}", rule.title, *figures(outcome, lru, upload_s)]
                sys.stdout.write(f"| {' | '.join(cells)} |\n")
                sys.stdout.flush()
    return 0


def figures(outcome: Outcome, lru: Outcome, upload_s: float | None) -> Iterator[str]:
    """The cells of a row, by what LRU came to."""
    for name in ("waited", "uploads", "waited_s", "seconds"):
        yield f"{getattr(outcome, name) / getattr(lru, name):.2f}"
    yield f"{1 - outcome.uploads * (upload_s or 1.0) / outcome.seconds:.0%}"


if __name__ == "__main__":
    raise SystemExit(main())
