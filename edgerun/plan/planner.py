"""Plans a graph: which back-end runs which nodes, in each phase, and why.

A pure function of the graph, the back-ends' statements and their costs. Nodes stay in order, so
a plan is a sequence of segments; the cheapest one is found by dynamic programming over the
nodes, with a charge for every change of back-end.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

from edgerun.backends.base import Backend
from edgerun.errors import UnsupportedError
from edgerun.graph.ir import Graph
from edgerun.plan.plans import Plan, Refusal, Route, Segment
from edgerun.plan.tasks import TYPICAL, Placed, Task, segments_of, task_of


def plan_prompts(graph: Graph, backends: Sequence[Backend], preferred: str | None = None) -> Route:
    """Chooses the cheapest placement of rows whose logits nobody wants.

    Args:
        graph: what they leave in the cache, see ``routes.prompt_graph``.
        backends: see ``make_plan``.
        preferred: see ``make_plan``.

    Raises:
        UnsupportedError: some node runs on none of them.
    """
    task = Task(graph, TYPICAL[0], frozenset())
    return Route(*_place(task, backends, preferred))


def make_plan(graph: Graph, backends: Sequence[Backend], preferred: str | None = None) -> Plan:
    """Chooses the cheapest placement for every phase.

    Args:
        graph: lowered.
        backends: candidates whose ``probe`` succeeded; one of them alone forces it.
        preferred: name of the one that takes every node it supports, whatever that costs.

    Raises:
        UnsupportedError: some node runs on none of them.
    """
    segments, refusals = {}, {}
    for shape in TYPICAL:
        task = task_of(graph, shape)
        segments[shape.phase], refusals[shape.phase] = _place(task, backends, preferred)
    return Plan(segments, refusals, cost_bases(backends))


def cost_bases(backends: Sequence[Backend]) -> dict[str, str]:
    """What the estimates of back-ends stand on, of those that say so, by name."""
    bases = {backend.name: backend.cost_basis() for backend in backends}
    return {name: basis for name, basis in bases.items() if basis}


def _place(
    task: Task, backends: Sequence[Backend], preferred: str | None
) -> tuple[tuple[Segment, ...], tuple[Refusal, ...]]:
    graph = task.graph
    mixing = [backend for backend in backends if not backend.whole_graph]
    seconds, placed = cheapest_path(task, mixing, preferred)
    for backend in backends:
        if backend.whole_graph and all(task.able(backend, node) for node in graph.nodes):
            alone = [(node, backend, task.cost(backend, node)) for node in graph.nodes]
            if (total := sum(cost for *_, cost in alone)) < seconds:
                seconds, placed = total, alone
    if placed:
        return segments_of(task, placed), refusals_of(task, backends, placed)
    if not graph.nodes:
        raise UnsupportedError(graph.refusal)
    reasons = [
        f"{refusal.backend}: {refusal.reason}" for refusal in refusals_of(task, backends, [])
    ]
    said = "; ".join(reasons) or "none was given"
    raise UnsupportedError(
        f"no back-end runs this model's {task.shape.phase.value}: {said}{_advice(graph, backends)}"
    )


def _advice(graph: Graph, backends: Sequence[Backend]) -> str:
    """What a user may try whose model the given back-ends cannot run; may be empty."""
    asked = {backend.name for backend in backends}
    if "reference" not in asked and not graph.refusal:
        return "; --backend reference runs it, slowly"
    if "onnxruntime" not in asked and graph.source is not None:
        return "; if you trust the file, --backend onnxruntime may run it, without our limits"
    return ""


def cheapest_path(
    task: Task, backends: Sequence[Backend], preferred: str | None = None
) -> tuple[float, Placed]:
    """Best back-end for every node (Viterbi's algorithm); no nodes where one has none.

    A change of back-end costs what the bytes that cross cost, and something for itself.
    """
    best: dict[Backend | None, tuple[float, Placed]] = {None: (0.0, [])}
    crossing = task.crossing_bytes() if len(backends) > 1 else [0] * len(task.graph.nodes)
    for node, nbytes in zip(task.graph.nodes, crossing, strict=True):
        reached: dict[Backend | None, tuple[float, Placed]] = {}
        able = [backend for backend in backends if task.able(backend, node)]
        for backend in [candidate for candidate in able if candidate.name == preferred] or able:
            cost = task.cost(backend, node)
            totals = {
                before: total + cost + task.change_seconds(before, backend, nbytes)
                for before, (total, _) in best.items()
            }
            previous = min(totals, key=lambda before: totals[before])
            reached[backend] = (totals[previous], [*best[previous][1], (node, backend, cost)])
        if not reached:
            return math.inf, []
        best = reached
    return min(best.values(), key=lambda entry: entry[0])


def refusals_of(task: Task, backends: Sequence[Backend], placed: Placed) -> tuple[Refusal, ...]:
    """Why back-ends do not run nodes of a task that was placed so."""
    used = {backend.name for _, backend, _ in placed}
    refusals: list[Refusal] = []
    for backend in backends:
        if placed and backend.companions:
            refusals += _left_out(task, backend, placed)
            continue
        if backend.name in used:
            continue
        supports = [(node, task.able(backend, node)) for node in task.graph.nodes]
        unable = [pair for pair in supports if not pair[1]]
        if unable:
            node, support = unable[0]
            reason = task.graph.refusal or f"{node.name}: {support.reason}"
        else:
            own, others = task.total(backend), sum(cost for *_, cost in placed)
            figures = f"{own * 1e3:.2f} ms / {task.shape.rows} rows"
            reason = f"slower by estimate: {figures}"
            if own < others:
                reason = f"another was asked for; by estimate this is faster: {figures}"
        refusals.append(Refusal(backend.name, reason))
    return tuple(refusals)


def _left_out(task: Task, backend: Backend, placed: Placed) -> list[Refusal]:
    """Why nodes are not on a back-end that is made for some of them only, a line a reason."""
    nodes = [(node, cost) for node, other, cost in placed if other is not backend]
    supports = [task.able(backend, node) for node, _ in nodes]
    unable = Counter(support for support in supports if not support)
    refusals = [
        Refusal(backend.name, f"{support.reason} ({count} nodes)", support.remedy)
        for support, count in unable.items()
    ]
    able = [entry for entry, support in zip(nodes, supports, strict=True) if support]
    if able:
        own = sum(task.cost(backend, node) for node, _ in able)
        others = sum(cost for _, cost in able)
        slower = (
            f"slower by estimate: {own * 1e3:.2f} ms / {task.shape.rows} rows for "
            f"{len(able)} nodes that take {others * 1e3:.2f} ms elsewhere"
        )
        refusals.append(Refusal(backend.name, slower))
    return refusals
