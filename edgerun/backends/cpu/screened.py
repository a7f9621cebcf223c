"""A decode program whose head is screened: a coarse scan of all rows, the exact value of a few.

The caller says how many of the largest logits matter (``Batch.leading``). The coarse head of
``screen_weights.py`` gives every row a score and a bound of its error. The exact values of the
leading rows give a threshold; every row that may reach it is computed exactly, by the same sums in
the same order as the full head, so nothing that the caller looks at differs by a bit. If too many
rows may reach it, the full head runs.

The directions of the screen come from the first hidden states that pass. It is built in the
background, checked against the full head, and given up when it does not pay.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from edgerun import trace
from edgerun.backends.base import NO_VALUES, Launches, Values
from edgerun.backends.cpu.binder import ANY_LOGITS, Head
from edgerun.backends.cpu.executable import CpuExecutable
from edgerun.backends.cpu.screen_builder import LIMIT, ScreenBuilder, ScreenPolicy
from edgerun.backends.cpu.screen_program import ScreenProgram
from edgerun.backends.cpu.screen_weights import Screen
from edgerun.graph.ops import LOGITS
from edgerun.kernels.leaders import leaders
from edgerun.kernels.program import Program, ThreadTeam
from edgerun.state import Batch, KVCache, Leading

F32 = NDArray[np.float32]

TIE = 2.0**-20  # values closer than this may become equal when the sampler divides them
HUGE = 1e30  # beyond it, the sampler's arithmetic may overflow
TIMINGS = 3


@dataclass(slots=True)
class Record:
    """What screening did and cost; times in seconds, averages over recent tokens.

    Attributes:
        proved: tokens whose leading logits the screen proved.
        fell_back: tokens for which the full head had to run.
        rows: rows computed exactly for proved tokens.
        step_s: average time of a token.
        screen_s: average time of its screening, fallback included.
        full_s: time of the full head alone.
        off: why the screen is not used; empty while it may be.
    """

    proved: int = 0
    fell_back: int = 0
    rows: int = 0
    step_s: float = 0.0
    screen_s: float = 0.0
    full_s: float = 0.0
    off: str = ""

    def judge(self, policy: ScreenPolicy) -> None:
        """Gives up if the trial is over and too little was gained."""
        tried = self.proved + self.fell_back
        gain = self.full_s - self.screen_s
        if policy.trial and tried >= policy.trial and gain < policy.min_gain * self.step_s:
            self.off = f"it saves {gain * 1e3:.2f} ms of {self.step_s * 1e3:.2f} ms a token"


class ScreenedExecutable:
    """Runs a decode program with a screened head where the batch allows it.

    Attributes:
        record: what happened so far.
    """

    def __init__(
        self,
        program: CpuExecutable,
        head: Head,
        team: ThreadTeam,
        compile_screen: Callable[[Screen], ScreenProgram],
    ) -> None:
        """Takes a decode program with its head, and what binds a screen to kernels."""
        self._program, self._head, self._team = program, head, team
        self._compile = compile_screen
        self._full = Program([head.instruction], [head, program], program.frame)
        self._screen: ScreenProgram | None = None
        self.follow(ScreenPolicy())

    def follow(self, policy: ScreenPolicy) -> None:
        """Starts anew under another policy."""
        self.record = Record()
        self._screen = None
        self._policy = policy
        self._builder = ScreenBuilder(self._head.weight, self._compile, policy)

    @property
    def launches(self) -> Launches:
        """Counts of the decode program."""
        return self._program.launches

    def __call__(self, batch: Batch, cache: KVCache, values: Values = NO_VALUES) -> Values:
        """Runs the batch; see ``Executable``."""
        leading = batch.leading
        if leading is None or len(batch.logit_rows) != 1 or self.record.off:
            return self._program(batch, cache, values)
        if self._screen is None:
            result = self._program(batch, cache, values)
            self._prepare(result[LOGITS][0], leading)
            return result
        began = time.perf_counter()
        self._program(batch, cache, values, head=False)
        body = time.perf_counter()
        logits = self._logits(self._screen, leading, cache)
        end = time.perf_counter()
        self.record.screen_s = _average(self.record.screen_s, end - body)
        self.record.step_s = _average(self.record.step_s, end - began)
        self.record.judge(self._policy)
        return {LOGITS: logits[None]}

    def close(self) -> None:
        """Waits for the builder, says how screening went and closes the program."""
        self._builder.close()
        trace.say(trace.TIMES, f"screened head: {self.record}")
        self._program.close()

    def full_logits(self) -> F32:
        """Runs the full head on the current state, float32 ``[N]``."""
        self._program.frame[ANY_LOGITS] = 1
        self._team.run(self._full)
        logits: F32 = self._head.out.array[0, : self._head.out.width]
        return logits

    def _logits(self, screen: ScreenProgram, leading: Leading, cache: KVCache) -> F32:
        """Logits of the current state, float32 ``[N]``, exact where ``leading`` says."""
        scores = screened_logits(screen, self._head.state(), leading, cache)
        if scores is None:
            self.record.fell_back += 1
            return self.full_logits()
        self.record.proved += 1
        self.record.rows += screen.chosen
        return scores

    def _prepare(self, logits: F32, leading: Leading) -> None:
        """Shows the builder the current state, or takes over what it built."""
        builder = self._builder
        if builder.built is not None:
            self._take(builder.built, logits)
        elif builder.refusal:
            self.record.off = builder.refusal
        else:
            builder.add(self._head.state(), logits, leading.count)

    def _take(self, built: ScreenProgram, logits: F32) -> None:
        """Uses a screen from now on if its exact values have the bits of the head's."""
        if not built.agrees(logits):
            self.record.off = "its values differ from those of the head"
            return
        times = []
        for _ in range(TIMINGS):
            start = time.perf_counter()
            self.full_logits()
            times.append(time.perf_counter() - start)
        self.record.full_s = min(times)
        self._screen = built


def screened_logits(
    screen: ScreenProgram, state: F32, leading: Leading, cache: KVCache
) -> F32 | None:
    """Logits of a state, float32 ``[N]``, exact where ``leading`` asks for it.

    All others are below those of the leading rows. None if too many rows would be needed, or the
    state has values for which nothing can be proved.
    """
    limit = int(LIMIT * screen.rows)
    z, reach, rounding = screen.bound.project(state)
    known = len(leading.ids)
    if not 0 < reach < HUGE or known + leading.count > limit:
        return None
    if known and not 0 <= leading.ids.min() <= leading.ids.max() < screen.rows:
        return None  # the sampler has words for it
    scores = screen.scores(state, z, cache)
    free = scores
    if known:
        free = scores.copy()
        free[leading.ids] = -np.inf
    chosen = leaders(free, leading.count)
    best = np.argpartition(free[chosen], -leading.count)[-leading.count :]
    chosen = np.concatenate([chosen[best], leading.ids])
    screen.make_exact(chosen)
    exact = scores[chosen]
    least, most = float(exact[: leading.count].min()), float(np.abs(exact).max())
    if not most < HUGE:
        return None
    possible = screen.possible(reach, least - rounding - 2 * TIE * most)
    if len(possible) > limit:
        return None
    screen.make_exact(possible)
    return scores


def _average(average: float, value: float) -> float:
    """A running average over some ten values."""
    return value if average == 0 else 0.9 * average + 0.1 * value
