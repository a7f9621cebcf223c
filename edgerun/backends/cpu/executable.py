"""A bound segment: copies the batch in, runs the program, hands the outputs out."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from edgerun import trace
from edgerun.backends.base import NO_VALUES, Executable, Launches, Values
from edgerun.backends.cpu.binder import ANY_LOGITS, LOGIT_ROWS, ROWS, Binder, Stage
from edgerun.backends.cpu.experts.protocol import Aborted
from edgerun.backends.cpu.families import paths_taken
from edgerun.backends.cpu.parts import MOST_PRODUCTS, parts_of, products_of_row
from edgerun.backends.cpu.stages import chunks_of, give_back, instructions_of, keep, room_for
from edgerun.errors import BackendError
from edgerun.kernels.run.instructions import Instruction
from edgerun.kernels.run.parts import FUNCTION
from edgerun.kernels.run.program import Program, ThreadTeam
from edgerun.state import Batch, SequenceStore


class _Steps(NamedTuple):
    """A program, and its instructions one by one where each is to be timed."""

    program: Program
    single: list[tuple[str, Program]]


class CpuExecutable(Executable):
    """Runs one native program per call, or several; of a long batch, its stages chunk by chunk."""

    def __init__(self, binder: Binder, team: ThreadTeam) -> None:
        """Takes over a binder whose segment is complete."""
        self._binder = binder
        self._team = team
        self._cache: SequenceStore | None = None
        self._stream = binder.experts.stream
        self._end = Stage(
            len(binder.instructions),
            tuple((binder.values[name], binder.counted_by[name]) for name in binder.graph.outputs),
        )
        named = [(name, binder.values[name]) for name in binder.graph.inputs]
        self._inputs = [(name, buffer.array[:, : buffer.width]) for name, buffer in named]
        ends = zip(binder.graph.outputs, self._end.taken, strict=True)
        self._outputs = [
            (name, buffer.array[:, : buffer.width], counted_by)
            for name, (buffer, counted_by) in ends
        ]
        self._stages: list[_Steps] = []  # once a batch is long
        self._parts: list[_Steps] = []  # once a call takes long
        self._row_products = products_of_row(binder.graph)
        self.is_layered = len(binder.stages) > 1
        for arguments, code in binder.calls:
            arguments[FUNCTION] = code.address
        self._launches = self.launches = Launches(
            instructions=len(binder.instructions),
            paths=paths_taken(binder.kernels),
        )
        self._times = trace.Times(binder.shape.phase.value)
        self._steps = self._steps_of(binder.instructions)

    def __call__(self, batch: Batch, cache: SequenceStore, values: Values = NO_VALUES) -> Values:
        """Runs the batch; see ``Executable``.

        Raises:
            BackendError: the batch has more rows than the program was compiled for, or experts
                could not be read.
        """
        binder, rows = self._binder, batch.rows
        if rows > binder.shape.rows and not self.is_layered:
            raise BackendError(
                f"a batch of {rows} rows for a program of at most {binder.shape.rows}"
            )
        if cache is not self._cache:
            self._bind(cache)
        if rows > binder.shape.rows:
            return self._run_in_stages(batch)
        self._take(batch)
        for name, given in self._inputs:
            value = values[name]
            given[: len(value)] = value
        for _, prepare in binder.before_stage:
            prepare()
        if self._stream is None:
            self._run_in_parts(batch)
        else:
            with self._stream.run(repeats=False):
                self._run(self._steps)
        counts = {ROWS: rows, LOGIT_ROWS: len(batch.logit_rows)}
        return {name: values[: counts[counted_by]] for name, values, counted_by in self._outputs}

    def close(self) -> None:
        """Waits until no worker looks at the program any more."""
        for line in self._times.report():
            trace.say(trace.TIMES, line)
        self._team.settle()

    def _take(self, batch: Batch) -> None:
        """Copies the batch in."""
        binder, rows, logit_rows = self._binder, batch.rows, len(batch.logit_rows)
        binder.ids[:rows] = batch.ids
        binder.positions[:rows] = batch.positions
        binder.sequences[:rows] = batch.sequences
        binder.logit_rows[:logit_rows] = batch.logit_rows
        binder.frame[ROWS] = rows
        binder.frame[LOGIT_ROWS] = logit_rows
        binder.frame[ANY_LOGITS] = logit_rows > 0
        for prepare in binder.before_run:
            prepare()

    def _run_in_parts(self, batch: Batch) -> None:
        """One program; several where that takes long, since Ctrl-C and callers that leave wait.

        Raises:
            Cancelled: nobody waits for the batch any more.
        """
        if batch.rows * self._row_products <= MOST_PRODUCTS:
            self._run(self._steps)
            return
        if not self._parts:
            products = self._binder.shape.rows * self._row_products
            self._parts = [*map(self._steps_of, parts_of(self._binder.instructions, products))]
        for steps in self._parts:
            batch.check_cancelled()
            self._run(steps)

    def _run_in_stages(self, batch: Batch) -> Values:
        """Every chunk of the batch goes through a stage before any goes through the next.

        Raises:
            Cancelled: nobody waits for the batch any more.
        """
        binder = self._binder
        stages = [*binder.stages, self._end]
        if not self._stages:
            self._stages = [*map(self._steps_of, instructions_of(stages, binder.instructions))]
        chunks, taken = chunks_of(batch, binder.shape.rows), list[NDArray[Any]]()
        with self._experts_at_hand() as is_aborted:
            for number, steps in enumerate(self._stages):
                carried = room_for(stages[number + 1], batch, taken)
                for chunk in chunks:
                    batch.check_cancelled()
                    self._take(chunk.batch)
                    give_back(stages[number], chunk, taken)
                    for stage, prepare in binder.before_stage:
                        if stage == number:
                            prepare()
                    self._run(steps)
                    if is_aborted():
                        return {}  # and those who read say why
                    keep(stages[number + 1], chunk, carried, batch.take_logits)
                taken = carried
        return dict(zip(binder.graph.outputs, taken, strict=True))

    def _experts_at_hand(self) -> AbstractContextManager[Aborted]:
        """Of a batch that goes through its stages chunk by chunk."""
        if self._stream is None:
            return nullcontext(lambda: False)
        return self._stream.run(repeats=True)

    def _run(self, steps: _Steps) -> None:
        """One call for all instructions, or one for each when they are to be timed."""
        if not steps.single:
            start = time.perf_counter()
            self._team.run(steps.program)
            self._launches.native_s += time.perf_counter() - start
            if not self._launches.runs:
                self._launches.waits = self._steps.program.waits()
            self._launches.runs += 1
        for label, step in steps.single:
            start = time.perf_counter()
            self._team.run(step)
            self._times.add(label, time.perf_counter() - start)

    def _steps_of(self, instructions: Sequence[Instruction]) -> _Steps:
        binder = self._binder
        used = [binder.keep, binder.operands, binder.weights, binder.experts]
        keep_ = [*used, binder.pool.all, binder.graph]
        program = Program(instructions, keep_, binder.frame)
        if not trace.enabled(trace.TIMES):
            return _Steps(program, [])
        return _Steps(
            program, [(step.label, Program([step], [], binder.frame)) for step in instructions]
        )

    def _bind(self, cache: SequenceStore) -> None:
        states, expected = cache.states, self._binder.options.states
        if states != expected:
            raise BackendError(
                f"the program was compiled for the states {expected}, the store has {states}"
            )
        self._cache = None  # until all is bound, for Ctrl-C may come in between
        for patch in self._binder.patches:
            patch.block[patch.index] = np.int64(patch.value(cache))
        self._cache = cache
