"""Rows of prompts that go another way than all others, and what decides which do."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from edgerun.backends.base import FEW_ROWS, NO_VALUES, Backend, Executable, Values
from edgerun.plan.plans import Plan, Route, Segment
from edgerun.state import Batch, SequenceStore

if TYPE_CHECKING:
    from edgerun.plan.requests.breakeven import Split
    from edgerun.plan.requests.correction import Correction, LateCorrection


class PromptRows:
    """Runs rows of prompts whose logits nobody wants, which leave keys and values alone.

    Attributes:
        nothing: the outputs of a batch of which nothing else is left.
    """

    def __init__(
        self,
        program: Executable,
        from_rows: int,
        outputs: Values,
        correction: Correction | LateCorrection | None = None,
        substitutes: Substitutes | None = None,
    ) -> None:
        """Takes what runs so many rows of a sequence and more.

        Args:
            program: that runs them.
            from_rows: the least.
            outputs: of a batch without rows.
            correction: says instead how many are the least, by what prompts took so far.
            substitutes: programs that stand in for a device; what they take says nothing of it.
        """
        self._substitutes = substitutes or Substitutes()
        self._program, self._from_rows, self._correction = program, from_rows, correction
        self.nothing = outputs

    def take(self, batch: Batch, cache: SequenceStore) -> Batch:
        """Runs what it may of a batch; returns the rest."""
        left: list[Batch] = []
        for start, stop in batch.runs():
            first = int(np.searchsorted(batch.logit_rows, start))
            with_logits = int(batch.logit_rows[first]) if first < len(batch.logit_rows) else stop
            edge = min(with_logits, stop)
            if self._goes_there(edge - start):
                self._run_there(batch.part(start, edge), cache)
            else:
                edge = start
            left.append(batch.part(edge, stop))
        return Batch.join(left) if left else batch

    def run_here(self, program: Executable, batch: Batch, cache: SequenceStore) -> Values:
        """Runs what is left of a batch, and notes what a prompt took that stayed."""
        began = time.perf_counter()
        values = program(batch, cache)
        if self._correction and batch.rows > FEW_ROWS and len(list(batch.runs())) == 1:
            self._correction.stayed_here(batch.rows, time.perf_counter() - began)
        return values

    def _goes_there(self, rows: int) -> bool:
        if self._correction is not None:
            return self._correction.goes_there(rows)
        return rows >= self._from_rows

    def _run_there(self, part: Batch, cache: SequenceStore) -> None:
        before, began = self._substitutes.calls, time.perf_counter()
        self._program(part, cache)
        # A network that was made now was compared with its substitute, so nor is that counted.
        if self._correction and self._substitutes.calls == before:
            self._correction.went_there(part.rows, time.perf_counter() - began)

    def close(self) -> None:
        """Closes the program."""
        self._program.close()


class Substitutes:
    """Counts calls of programs that stand in for a device, or that it is compared with.

    Attributes:
        calls: so far.
    """

    def __init__(self) -> None:
        self.calls = 0

    def add(self, program: Executable) -> Executable:
        """The program, whose calls are counted from now on."""
        return _Counted(program, self)


class _Counted(Executable):
    def __init__(self, program: Executable, substitutes: Substitutes) -> None:
        self._program, self._substitutes = program, substitutes

    def __call__(self, batch: Batch, cache: SequenceStore, values: Values = NO_VALUES) -> Values:
        """Counts, and runs the program; see ``Executable``."""
        self._substitutes.calls += 1
        return self._program(batch, cache, values)

    def close(self) -> None:
        """Closes the program."""
        self._program.close()


def correction_of(plan: Plan, backends: Sequence[Backend]) -> Correction | None:
    """What corrects the plan as it goes: nothing where users said what goes where, or no clock."""
    is_real = not any(backend.is_simulated for backend in backends)
    if plan.is_asked or not plan.splits or not is_real:
        return None
    from edgerun.plan.requests.correction import (
        Correction,  # where nothing was measured, not needed
    )

    return Correction(plan.splits[0])


class LateRoute:
    """A route that is found after some prompts, if there is one that might be better."""

    def __init__(self, find: Callable[[], tuple[Split, Route] | None]) -> None:
        """Takes what finds it."""
        self._find = find
        self._route: Route | None = None

    @property
    def segments(self) -> tuple[Segment, ...]:
        """Of the route, once it is found."""
        return self._route.segments if self._route else ()

    def correction(self) -> LateCorrection:
        """What decides which prompts take it."""
        from edgerun.plan.requests.correction import LateCorrection

        return LateCorrection(self._weigh)

    def _weigh(self) -> Split | None:
        trial = self._find()
        if trial is None:
            return None
        split, self._route = trial
        return split
