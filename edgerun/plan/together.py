"""Plans of whole requests, by what devices were measured to do."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from edgerun.backends.base import FEW_ROWS, Backend, Phase
from edgerun.graph.ir import Graph
from edgerun.plan.pairs import Pair, Tasks, place_alone, place_together
from edgerun.plan.planner import cheapest_path, cost_bases, make_plan, refusals_of
from edgerun.plan.plans import Plan, Refusal, Route, Segment
from edgerun.plan.routes import prompt_graph
from edgerun.plan.tasks import TYPICAL, USUAL, Budget, Task, segments_of

FOLLOWS = "these rows go where replies are computed"


def plan_together(
    graph: Graph,
    backends: Sequence[Backend],
    budget: Budget = USUAL,
    *,
    weighs_all: bool = False,
) -> Plan:
    """Chooses the cheapest placement of whole requests, by what was measured.

    Rows whose logits are wanted, and prompts too short to go elsewhere, go where replies are
    computed. A pure function of what the back-ends state.

    Args:
        graph: lowered.
        backends: candidates, some of which were measured.
        budget: the requests to plan for.
        weighs_all: also says why devices take no part, and what prompts would take there.

    Raises:
        UnsupportedError: some node runs on none of the back-ends.
    """
    if graph.refusal:
        return make_plan(graph, backends)
    tasks = Tasks.of(graph, prompt_graph(graph), budget)
    mixing = [backend for backend in backends if not backend.whole_graph]
    pair = place_alone(tasks, mixing) or place_together(tasks, mixing)
    used = {backend.name for _, backend, _ in pair.replies}
    others = [backend for backend in backends if backend.name in used]
    segments: dict[Phase, tuple[Segment, ...]] = {}
    refusals: dict[Phase, tuple[Refusal, ...]] = {}
    for shape in TYPICAL:
        task = Task(graph, shape, tasks.replies.late)
        if shape.phase is Phase.DECODE:
            segments[shape.phase] = segments_of(graph, pair.replies)
            refused = refusals_of(task, backends, pair.replies) if weighs_all else ()
            refusals[shape.phase] = refused
        else:
            _, placed = cheapest_path(task, others)
            segments[shape.phase] = segments_of(graph, placed)
            elsewhere = [each.name for each in backends if each not in others]
            refusals[shape.phase] = tuple(Refusal(name, FOLLOWS) for name in elsewhere)
    plan = Plan(segments, refusals, cost_bases(backends), is_asked=False)
    plan = _with_route(plan, tasks, backends, pair)
    if not weighs_all:
        return plan
    from edgerun.plan.splits import other_splits

    refused_splits = other_splits(tasks, backends, pair.prompts, pair.replies)
    return replace(plan, splits=(*plan.splits, *refused_splits))


def _with_route(plan: Plan, tasks: Tasks, backends: Sequence[Backend], pair: Pair) -> Plan:
    """The plan with a route for prompts, where these go elsewhere and it pays in a call."""
    replies = {node.name: backend for node, backend, _ in pair.replies}
    if all(replies[node.name] is backend for node, backend, _ in pair.prompts):
        return plan
    from edgerun.plan.splits import split_of

    split = split_of(tasks, pair.prompts, pair.replies)
    tokens, route = split.from_tokens(), None
    if tokens is not None:
        refusals = refusals_of(tasks.prompts, backends, pair.prompts)
        segments = segments_of(tasks.prompts.graph, pair.prompts)
        route = Route(segments, refusals, max(tokens - 1, FEW_ROWS + 1))
    return replace(plan, prompts=route, splits=(split,))
