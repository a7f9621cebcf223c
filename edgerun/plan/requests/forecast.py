"""How long calls will take: those of whole prompts in a placement, and those that were made."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from edgerun.backends.base import Backend, Phase, Shape
from edgerun.backends.estimates import kept_bytes
from edgerun.graph.shapes import value_shapes
from edgerun.plan.requests.pairs import handover_seconds
from edgerun.plan.tasks import Placed, Task

if TYPE_CHECKING:
    from edgerun.plan.metering import Meter


@dataclass(frozen=True, slots=True)
class Forecast:
    """Prompts there, their last tokens and replies here; see ``breakeven.Split``.

    Attributes:
        prompts: what prompts leave in the cache, and where its nodes go.
        whole: all nodes, and where they go that are not computed there.
        call_rows: tokens of a call, at most.
        launch_s: what the first call there takes longer.
        handover_s: for each token, to hand its keys and values over.
    """

    prompts: tuple[Task, Placed]
    whole: tuple[Task, Placed]
    call_rows: int
    launch_s: float = 0.0
    handover_s: float = 0.0

    def seconds_here(self, tokens: int) -> float:
        """For a prompt of so many tokens, all of them here."""
        task, placed = self.whole
        return sum(
            path_seconds(task.shaped(replace(Shape.of(rows), cached=cached)), placed)
            for rows, cached in calls_of(tokens, self.call_rows)
        )

    def seconds_there(self, tokens: int) -> float:
        """For a prompt of so many tokens, the last one here."""
        (prompts, placed), (whole, elsewhere) = self.prompts, self.whole
        before = tokens - 1
        seconds = path_seconds(whole.shaped(Shape(Phase.DECODE, 1, before)), elsewhere)
        for rows, cached in calls_of(before, self.call_rows):
            seconds += path_seconds(prompts.shaped(Shape(Phase.PREFILL, rows, cached)), placed)
        return seconds + before * self.handover_s + (self.launch_s if before else 0.0)


def calls_of(tokens: int, call_rows: int) -> Iterator[tuple[int, int]]:
    """Rows of each call for a prompt, and how many tokens are in the cache then.

    >>> list(calls_of(600, 256))
    [(256, 0), (256, 256), (88, 512)]
    """
    for start in range(0, tokens, call_rows):
        yield min(call_rows, tokens - start), start


def path_seconds(task: Task, placed: Placed) -> float:
    """Seconds of a placement in a task's shape."""
    total, before = 0.0, None
    for (node, backend, _), nbytes in zip(placed, task.crossing_bytes(), strict=True):
        total += task.change_seconds(before, backend, nbytes) + task.cost(backend, node)
        before = backend
    return total


def metered_seconds(meter: Meter, backend: Backend) -> float | None:
    """Seconds that the calls of a segment were expected to take, keys and values handed over.

    Returns:
        None where nothing was measured that says so.
    """
    if not backend.is_measured:
        return None
    graph, phase = meter.segment.graph, meter.shape.phase
    shapes = value_shapes(graph)
    late = {
        node.name for node in graph.nodes if any(shapes[name].selected for name in node.outputs)
    }
    total = 0.0
    for call in meter.calls:
        task = Task(graph, Shape(phase, call.rows, call.cached), frozenset())
        logits = task.shaped(Shape(phase, call.logit_rows, call.cached))
        total += task.change_seconds(None, backend, 0)
        for node in graph.nodes:
            total += handover_seconds(call.rows * kept_bytes(node), backend, backend)
            if node.name not in late:
                total += task.cost(backend, node)
            elif call.logit_rows:
                total += logits.cost(backend, node)
    return total
