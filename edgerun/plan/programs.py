"""The programs of a model, by the batches that they take."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from edgerun import trace
from edgerun.backends.base import (
    NO_VALUES,
    Backend,
    CompileOptions,
    Executable,
    Launches,
    Shape,
    Values,
)
from edgerun.backends.observe import ObservedExecutable
from edgerun.env import settings
from edgerun.errors import BackendError, UnsupportedError
from edgerun.graph.ir import Graph
from edgerun.plan.planner import Plan
from edgerun.state import Batch, SequenceStore


class Programs:
    """Runs batches of any number of rows, each by the smallest program that takes it."""

    def __init__(self, compiled: Mapping[Shape, Executable]) -> None:
        """Takes one program for each shape of batches."""
        self._compiled = sorted(compiled.items(), key=lambda item: item[0].rows)

    @property
    def max_rows(self) -> int:
        """Rows of the largest batch."""
        return self._compiled[-1][0].rows if self._compiled else 0

    @property
    def launches(self) -> dict[str, Launches]:
        """Counters by phase, of the programs that have them."""
        return {
            shape.phase.value: program.launches
            for shape, program in self._compiled
            if program.launches is not None
        }

    def run(self, batch: Batch, cache: SequenceStore) -> Values:
        """Runs a batch; see ``Executable``.

        Raises:
            BackendError: the batch has more rows than any program takes, or a program failed.
        """
        for shape, program in self._compiled:
            if batch.rows <= shape.rows:
                return program(batch, cache)
        raise BackendError(f"a batch of {batch.rows} rows for programs of at most {self.max_rows}")

    def close(self) -> None:
        """Closes all programs; calling it twice is allowed."""
        programs, self._compiled = self._compiled, []
        for program in {id(program): program for _, program in programs}.values():
            program.close()


class Chain(Executable):
    """Executables of consecutive segments as one."""

    def __init__(self, parts: Sequence[Executable]) -> None:
        self._parts = list(parts)

    def __call__(self, batch: Batch, cache: SequenceStore, values: Values = NO_VALUES) -> Values:
        """Runs the parts in order, each seeing what the earlier ones produced."""
        computed = dict(values)
        for part in self._parts:
            computed.update(part(batch, cache, computed))
        return computed

    def close(self) -> None:
        """Closes the parts."""
        for part in self._parts:
            part.close()


def compile_plan(
    plan: Plan, backends: Sequence[Backend], shapes: Sequence[Shape], options: CompileOptions
) -> Programs:
    """Compiles the plan for the shapes of batches that there will be.

    With ``EDGERUN_VALIDATE=1`` every node of a back-end that mixes is checked as it runs, with
    ``EDGERUN_DEBUG=3`` its value is shown.
    """
    for row in plan.explain():
        what = dict(row.ops) if row.chosen else row.reason
        trace.say(trace.PLAN, f"{row.phase} {'' if row.chosen else 'not '}{row.backend}: {what}")
    by_name = {backend.name: backend for backend in backends}
    compiled: dict[Shape, Executable] = {}
    # Largest first: its kernels are the most, and compile while the others are bound.
    for shape in sorted(shapes, key=lambda shape: -shape.rows):
        parts = [
            _compile(
                by_name[segment.backend],
                segment.graph,
                shape,
                _with_fallback(by_name, segment.backend, options),
            )
            for segment in plan.segments[shape.phase]
        ]
        compiled[shape] = parts[0] if len(parts) == 1 else Chain(parts)
    return Programs(compiled)


def _with_fallback(
    by_name: Mapping[str, Backend], name: str, options: CompileOptions
) -> CompileOptions:
    """Options from which a back-end with companions learns who stands in for it."""
    if not by_name[name].companions:
        return options
    companions = [by_name[other] for other in by_name[name].companions if other in by_name]

    def compile_elsewhere(segment: Graph, shape: Shape) -> Executable:
        for other in companions:
            if all(other.supports(segment, node, shape) for node in segment.nodes):
                return other.compile(segment, shape, options)
        raise UnsupportedError(f"the back-end '{name}' failed and no other runs what it ran")

    return replace(options, fallback=compile_elsewhere)


def _compile(backend: Backend, segment: Graph, shape: Shape, options: CompileOptions) -> Executable:
    checks, shows = settings().validate, trace.enabled(trace.SHAPES)
    if (checks or shows) and not backend.whole_graph:
        return ObservedExecutable(backend, segment, shape, options, checks=checks, shows=shows)
    return backend.compile(segment, shape, options)
