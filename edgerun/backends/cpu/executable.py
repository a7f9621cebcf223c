"""A bound segment: copies the batch in, runs the program, hands the outputs out."""

from __future__ import annotations

import time
from contextlib import nullcontext

import numpy as np

from edgerun import trace
from edgerun.backends.base import NO_VALUES, Executable, Launches, Values
from edgerun.backends.cpu.binder import ANY_LOGITS, LOGIT_ROWS, ROWS, Binder
from edgerun.backends.cpu.families import paths_taken
from edgerun.errors import BackendError
from edgerun.kernels.run.parts import FUNCTION
from edgerun.kernels.run.program import Program, ThreadTeam
from edgerun.state import Batch, SequenceStore


class CpuExecutable(Executable):
    """Runs one native program per call."""

    def __init__(self, binder: Binder, team: ThreadTeam) -> None:
        """Takes over a binder whose segment is complete."""
        self._binder = binder
        self._team = team
        self._cache: SequenceStore | None = None
        stream = binder.experts.stream
        self._experts_at_hand = nullcontext if stream is None else stream.run
        self._program = Program(
            binder.instructions,
            [
                binder.keep,
                binder.operands,
                binder.weights,
                binder.experts,
                binder.pool.all,
                binder.graph,
            ],
            binder.frame,
        )
        for arguments, code in binder.calls:
            arguments[FUNCTION] = code.address
        self._launches = self.launches = Launches(
            instructions=len(binder.instructions),
            paths=paths_taken(binder.kernels),
        )
        self._times = trace.Times(binder.shape.phase.value)
        self._steps = self._single_steps() if trace.enabled(trace.TIMES) else []

    def __call__(self, batch: Batch, cache: SequenceStore, values: Values = NO_VALUES) -> Values:
        """Runs the batch; see ``Executable``.

        Raises:
            BackendError: the batch has more rows than the program was compiled for, or experts
                could not be read.
        """
        binder, rows, logit_rows = self._binder, batch.rows, len(batch.logit_rows)
        if rows > binder.shape.rows:
            raise BackendError(
                f"a batch of {rows} rows for a program of at most {binder.shape.rows}"
            )
        if cache is not self._cache:
            self._bind(cache)
        binder.ids[:rows] = batch.ids
        binder.positions[:rows] = batch.positions
        binder.sequences[:rows] = batch.sequences
        binder.logit_rows[:logit_rows] = batch.logit_rows
        binder.frame[ROWS] = rows
        binder.frame[LOGIT_ROWS] = logit_rows
        binder.frame[ANY_LOGITS] = logit_rows > 0
        for name in binder.graph.inputs:
            buffer = binder.values[name]
            buffer.array[: len(values[name]), : buffer.width] = values[name]
        for prepare in binder.before_run:
            prepare()
        with self._experts_at_hand():
            self._run()
        counts = {ROWS: rows, LOGIT_ROWS: logit_rows}
        outputs = {}
        for name in binder.graph.outputs:
            buffer = binder.values[name]
            outputs[name] = buffer.array[: counts[binder.counted_by[name]], : buffer.width]
        return outputs

    def close(self) -> None:
        """Waits until no worker looks at the program any more."""
        for line in self._times.report():
            trace.say(trace.TIMES, line)
        self._team.settle()

    def _run(self) -> None:
        """One call for the whole program, or one a step when steps are to be timed."""
        if not self._steps:
            start = time.perf_counter()
            self._team.run(self._program)
            self._launches.native_s += time.perf_counter() - start
            if not self._launches.runs:
                self._launches.waits = self._program.waits()
            self._launches.runs += 1
        for label, step in self._steps:
            start = time.perf_counter()
            self._team.run(step)
            self._times.add(label, time.perf_counter() - start)

    def _single_steps(self) -> list[tuple[str, Program]]:
        frame = self._binder.frame
        return [(step.label, Program([step], [], frame)) for step in self._program.instructions]

    def _bind(self, cache: SequenceStore) -> None:
        states, expected = cache.states, self._binder.options.states
        if states != expected:
            raise BackendError(
                f"the program was compiled for the states {expected}, the store has {states}"
            )
        for patch in self._binder.patches:
            patch.block[patch.index] = np.int64(patch.value(cache))
        self._cache = cache
