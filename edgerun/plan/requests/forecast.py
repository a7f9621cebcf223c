"""How long calls will take: those of whole prompts in a placement, and those that were made."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from edgerun.backends.base import FEW_ROWS, Backend, Phase, Shape
from edgerun.backends.estimates import kept_bytes
from edgerun.graph.shapes import value_shapes
from edgerun.machine.devices import cut
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
        sizes: numbers of rows that calls there have, if they are padded.
        launch_s: what the first call there takes longer.
        handover_s: for each token, to hand its keys and values over.
        calls: seconds of calls that were estimated before.
    """

    prompts: tuple[Task, Placed]
    whole: tuple[Task, Placed]
    call_rows: int
    sizes: tuple[int, ...] = ()
    launch_s: float = 0.0
    handover_s: float = 0.0
    calls: dict[tuple[bool, Shape], float] = field(default_factory=dict, repr=False)

    def seconds_here(self, tokens: int) -> float:
        """For a prompt of so many tokens, all of them here."""
        return sum(
            self._call_seconds(replace(Shape.of(rows), cached=cached))
            for rows, cached in calls_of(tokens, self.call_rows)
        )

    def seconds_there(self, tokens: int) -> float:
        """For a prompt of so many tokens, the last one here, and so what few go with it."""
        seconds, launch = 0.0, 0.0
        for rows, cached in calls_of(tokens, self.call_rows):
            going = rows - (cached + rows == tokens)
            if going > FEW_ROWS:
                padded = sum(cut(going, self.sizes))
                there = Shape(Phase.PREFILL, padded, cached)
                seconds += self._call_seconds(there, is_there=True) + going * self.handover_s
                rows, cached, launch = rows - going, cached + going, self.launch_s
            if rows:
                seconds += self._call_seconds(replace(Shape.of(rows), cached=cached))
        return seconds + launch

    def _call_seconds(self, shape: Shape, *, is_there: bool = False) -> float:
        if (is_there, shape) not in self.calls:
            task, placed = self.prompts if is_there else self.whole
            self.calls[is_there, shape] = path_seconds(task.shaped(shape), placed)
        return self.calls[is_there, shape]


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
