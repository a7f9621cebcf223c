"""The programs of a model, by the batches that they take."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import replace
from functools import partial
from itertools import chain
from typing import Any

import numpy as np

from edgerun import trace
from edgerun.backends.base import (
    NO_VALUES,
    Backend,
    CompileOptions,
    Executable,
    Launches,
    Phase,
    Shape,
    Values,
)
from edgerun.backends.chain import Chain
from edgerun.backends.observe import ObservedExecutable
from edgerun.env import settings
from edgerun.errors import BackendError, UnsupportedError
from edgerun.graph.ir import Graph
from edgerun.graph.shapes import value_shapes
from edgerun.plan.metering import Meters
from edgerun.plan.plans import NEVER, PROMPTS, Plan, Segment
from edgerun.plan.prompt_rows import LateRoute, PromptRows, Substitutes, correction_of
from edgerun.plan.streaming import have_their_own
from edgerun.plan.tasks import Joined, join
from edgerun.state import Batch, SequenceStore

logger = logging.getLogger(__name__)


class Programs:
    """Runs batches of any number of rows, each by the smallest program that takes it.

    Attributes:
        meters: of its segments.
        has_rows_alike: whether rows have the bits that each alone has, in calls of few rows, of
            replies, and of many, of prompts.
    """

    def __init__(
        self,
        compiled: Mapping[Shape, Executable],
        prompts: PromptRows | None = None,
        meters: Meters | None = None,
        *,
        has_rows_alike: bool = False,
    ) -> None:
        """Takes one program for each shape of batches, and what takes rows of prompts first."""
        self._compiled = sorted(compiled.items(), key=lambda item: item[0].rows)
        self._prompts = prompts
        self.meters = meters or Meters()
        self.has_rows_alike = has_rows_alike

    @property
    def max_rows(self) -> int:
        """Rows of the largest batch that goes through a program as a whole."""
        return self._compiled[-1][0].rows if self._compiled else 0

    @property
    def is_layered(self) -> bool:
        """Whether a batch may have any number of rows; see ``Executable``."""
        return self._prompts is None and any(each.is_layered for _, each in self._compiled[-1:])

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
        if self._prompts is not None:
            batch = self._prompts.take(batch, cache)
            if not batch.rows:
                return self._prompts.nothing
        program = self._program(batch.rows)
        if self._prompts is not None:
            return self._prompts.run_here(program, batch, cache)
        return program(batch, cache)

    def _program(self, rows: int) -> Executable:
        """The smallest program that takes so many rows.

        One that nobody wanted before is not worth compiling, if the next larger one is there: all
        compute the same bits, unless prompts have weights of their own.
        """
        fitting = [program for shape, program in self._compiled if rows <= shape.rows]
        if not fitting and self.is_layered:
            return self._compiled[-1][1]
        if not fitting:
            raise BackendError(f"a batch of {rows} rows for programs of at most {self.max_rows}")
        if len(fitting) > 1 and not fitting[0].is_due and fitting[1].is_due:
            fitting[0].is_due = True
            return fitting[1]
        return fitting[0]

    def expect(self, rows: int) -> None:
        """Lets the program for so many rows be compiled when it is first wanted, not later."""
        for program in [each for shape, each in self._compiled if rows <= shape.rows][:1]:
            program.is_due = True

    def close(self) -> None:
        """Closes all programs; calling it twice is allowed."""
        programs, self._compiled = self._compiled, []
        if self._prompts is not None:
            self._prompts.close()
        for program in {id(program): program for _, program in programs}.values():
            program.close()


class Deferred(Executable):
    """A program that is compiled when it is first called."""

    def __init__(self, compile_: Callable[[], Executable]) -> None:
        """Takes what compiles it."""
        self._compile = compile_
        self._program: Executable | None = None
        self.is_due = False

    def __call__(self, batch: Batch, cache: SequenceStore, values: Values = NO_VALUES) -> Values:
        """Runs the program; see ``Executable``."""
        return self.prepare()(batch, cache, values)

    def prepare(self) -> Executable:
        """The program, compiled if it is not yet."""
        if self._program is None:
            self._program = self._compile()
            self.is_due, self.launches = True, self._program.launches
        return self._program

    def close(self) -> None:
        """Closes the program, if there is one."""
        if self._program is not None:
            self._program.close()


def compile_plan(
    plan: Plan,
    backends: Sequence[Backend],
    shapes: Sequence[Shape],
    options: CompileOptions,
    required: str | None = None,
) -> Programs:
    """Compiles the plan for the shapes of batches that there will be.

    With ``EDGERUN_VALIDATE=1`` every node of a back-end that mixes is checked as it runs, with
    ``EDGERUN_DEBUG=3`` its value is shown.

    Args:
        plan: of the model.
        backends: those that the plan names, and those that stand in for them.
        shapes: of batches.
        options: see ``Backend.compile``.
        required: name of the back-end for which none may stand in.

    Raises:
        BackendError: a back-end failed to compile its part.
        UnsupportedError: the one that is required takes no part.
    """
    _check(plan, required)
    by_name = {backend.name: backend for backend in backends}
    substitutes, meters = Substitutes(), Meters()
    program = _compiler(plan, by_name, options, required, substitutes, meters)
    # Largest first: its kernels are the most, and compile while the others are bound.
    ordered = sorted(shapes, key=lambda shape: -shape.rows)
    compiled: dict[Shape, Executable] = {}
    prompts = None
    with ExitStack() as owned:  # what an error leaves may be a compiler's process

        def deferred(*given: Any) -> Deferred:
            return owned.enter_context(closing(Deferred(partial(program, *given))))

        if plan.prompts is not None:
            _check_rows(plan.prompts.from_rows, ordered[0].rows)
            nothing = _without_rows(plan.segments[Phase.PREFILL][-1].graph)
            route, largest = plan.prompts, ordered.pop(0)
            there = deferred(route.segments, largest, PROMPTS)
            here = deferred(plan.segments[Phase.PREFILL], largest)
            # What was asked for shall fail at once if it does; else short prompts are first.
            (there if plan.is_asked else here).prepare()
            compiled[largest] = here
            corrects = correction_of(plan, backends)
            prompts = PromptRows(there, route.from_rows, nothing, corrects, substitutes)
        elif plan.trial is not None:
            prompts = _tried_rows(plan, LateRoute(plan.trial), program, ordered[0], substitutes)
        for shape in ordered:
            later = deferred(plan.segments[shape.phase], shape)
            later.is_due = have_their_own(plan, backends)  # that of prompts must not stand in
            compiled[shape] = later if _can_wait(plan, shape, by_name) else later.prepare()
        owned.pop_all()
    return Programs(compiled, prompts, meters, has_rows_alike=_has_rows_alike(plan, backends))


def _compiler(
    plan: Plan,
    by_name: Mapping[str, Backend],
    options: CompileOptions,
    required: str | None,
    substitutes: Substitutes,
    meters: Meters,
) -> Callable[..., Executable]:
    """What compiles segments for a shape of batches, and has them metered as a part."""

    def program(segments: Sequence[Segment], shape: Shape, part: str = "") -> Executable:
        parts = []
        with ExitStack() as owned:
            for joined in _joined(segments, by_name, shape):
                segment = joined.segment
                chosen = with_fallback(by_name, segment.backend, options, substitutes)
                is_required = segment.backend == required
                chosen = replace(chosen, required=is_required, is_asked=plan.is_asked)
                executable = _compile(by_name[segment.backend], joined, shape, chosen)
                owned.callback(executable.close)
                parts.append(meters.add(part or shape.phase.value, joined, shape, executable))
            owned.pop_all()
        return parts[0] if len(parts) == 1 else Chain(parts)

    return program


def _has_rows_alike(plan: Plan, backends: Sequence[Backend]) -> bool:
    """Whether it does not matter how the rows of a text are divided into calls.

    What is left of a reply that was ended early, or of one whose states cannot be taken back, is
    computed with the prompt that goes on with it: how much that is depends on drafts. (Where times
    say which prompts go elsewhere, texts depend on these anyway.)
    """
    by_name = {backend.name: backend for backend in backends}
    are_alike = all(by_name[each.backend].has_rows_alike for each in chain(*plan.segments.values()))
    goes_elsewhere = plan.prompts is not None and plan.is_asked
    return are_alike and not goes_elsewhere and not have_their_own(plan, backends)


def _tried_rows(
    plan: Plan,
    late: LateRoute,
    program: Callable[[Sequence[Segment], Shape, str], Executable],
    shape: Shape,
    substitutes: Substitutes,
) -> PromptRows:
    """What tries a device after some prompts; nothing of it is compiled before."""
    there = Deferred(lambda: program(late.segments, shape, PROMPTS))
    nothing = _without_rows(plan.segments[Phase.PREFILL][-1].graph)
    return PromptRows(there, NEVER, nothing, late.correction(), substitutes)


def _can_wait(plan: Plan, shape: Shape, by_name: Mapping[str, Backend]) -> bool:
    """Whether a program is made when it is wanted: many who chat need none for a few rows.

    Devices say at once if they cannot.
    """
    segments = plan.segments[shape.phase]
    return shape.phase is Phase.FEW and not any(by_name[s.backend].companions for s in segments)


def _check_rows(from_rows: int, rows: int) -> None:
    if rows < from_rows:
        raise UnsupportedError(
            f"calls have at most {rows} rows, and prompts go elsewhere from {from_rows} rows on: "
            "load the model with more chunk_rows, or without places"
        )


def _check(plan: Plan, required: str | None) -> None:
    """Shows the plan where that is wanted, and refuses one in which a required part is missing."""
    for row in plan.explain():
        what = dict(row.ops) if row.chosen else row.reason
        trace.say(trace.PLAN, f"{row.phase} {'' if row.chosen else 'not '}{row.backend}: {what}")
    if required is not None and required not in plan.backends():
        others = " and ".join(sorted(plan.backends()))
        unnamed = f"this model is computed by {others}; give it a part with --device or --place"
        why = plan.refusal_of(required) or unnamed
        raise UnsupportedError(f"{required} is required and takes no part: {why}")


def _without_rows(segment: Graph) -> Values:
    """The outputs of a last segment for which nothing is wanted."""
    shapes = value_shapes(segment)
    return {name: np.zeros((0, shapes[name].width), np.float32) for name in segment.outputs}


def with_fallback(
    by_name: Mapping[str, Backend],
    name: str,
    options: CompileOptions,
    substitutes: Substitutes | None = None,
) -> CompileOptions:
    """Options from which a back-end with companions learns who stands in for it, and is counted."""
    if not by_name[name].companions:
        return options
    companions = [by_name[other] for other in by_name[name].companions if other in by_name]

    def compile_elsewhere(segment: Graph, shape: Shape) -> Executable:
        for other in companions:
            if all(other.supports(segment, node, shape) for node in segment.nodes):
                compiled = other.compile(segment, shape, options)
                return substitutes.add(compiled) if substitutes else compiled
        raise UnsupportedError(f"the back-end '{name}' failed and no other runs what it ran")

    return replace(options, fallback=compile_elsewhere)


def _observes() -> tuple[bool, bool]:
    """Whether values are checked, and shown."""
    return settings().validate, trace.enabled(trace.SHAPES)


def _joined(
    segments: Sequence[Segment], by_name: Mapping[str, Backend], shape: Shape
) -> Sequence[Joined]:
    """Segments that are compiled together; each alone where somebody looks at every value."""
    return list(map(Joined, segments)) if any(_observes()) else join(segments, by_name, shape)


def _compile(backend: Backend, joined: Joined, shape: Shape, options: CompileOptions) -> Executable:
    checks, shows = _observes()
    segment = joined.segment.graph
    if (checks or shows) and not backend.whole_graph:
        return ObservedExecutable(backend, segment, shape, options, checks=checks, shows=shows)
    try:
        if joined.own:
            return backend.compile_joined(segment, joined.own, shape, options)
        return backend.compile(segment, shape, options)
    except BackendError as error:
        if options.is_asked or options.required or options.fallback is None:
            raise
        logger.warning("%s takes no part after all: %s", backend.name, error)
        return options.fallback(segment, shape)
