"""Plans of whole requests, by what devices were measured to do."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from edgerun.backends.base import FEW_ROWS, Backend, Phase
from edgerun.backends.estimates import kept_bytes
from edgerun.errors import UnsupportedError
from edgerun.graph.ir import Graph
from edgerun.plan.planner import cheapest_path, cost_bases, make_plan, refusals_of
from edgerun.plan.plans import NEVER, Plan, Refusal, Route, Segment
from edgerun.plan.requests.pairs import Pair, Tasks, place_alone, place_together
from edgerun.plan.routes import prompt_graph
from edgerun.plan.tasks import TYPICAL, USUAL, Budget, segments_of, task_of

if TYPE_CHECKING:
    from edgerun.plan.requests.breakeven import Split

FOLLOWS = "these rows go where replies are computed"
# What a device must gain that is the processor: it has the same cores and the same memory, and
# either was measured in a slower moment than the other.
LEAST_GAIN = 0.15


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
    large = _too_large(graph, backends, budget)
    excluded = {refusal.backend for refusal in large}
    mixing = [each for each in backends if not each.whole_graph and each.name not in excluded]
    pair = place_alone(tasks, mixing) or _place_for_sure(tasks, mixing)
    used = {backend.name for _, backend, _ in pair.replies}
    others = [backend for backend in mixing if backend.name in used]
    segments: dict[Phase, tuple[Segment, ...]] = {}
    refusals: dict[Phase, tuple[Refusal, ...]] = {}
    for shape in TYPICAL:
        task = task_of(graph, shape)
        if shape.phase is Phase.DECODE:
            segments[shape.phase] = segments_of(task, pair.replies)
            refused = refusals_of(task, mixing, pair.replies) if weighs_all else ()
            refusals[shape.phase] = (*refused, *large)
        else:
            _, placed = cheapest_path(task, others)
            segments[shape.phase] = segments_of(task, placed)
            elsewhere = [each.name for each in mixing if each not in others]
            follow = (Refusal(name, FOLLOWS) for name in elsewhere)
            refusals[shape.phase] = (*follow, *large)
    plan = Plan(segments, refusals, cost_bases(backends), is_asked=False)
    plan = _with_route(plan, tasks, mixing, pair)
    if not weighs_all:
        return _with_trial(plan, tasks, mixing, pair)
    from edgerun.plan.requests.splits import other_splits

    refused_splits = other_splits(tasks, mixing, pair.prompts, pair.replies)
    return replace(plan, splits=(*plan.splits, *refused_splits))


def _place_for_sure(tasks: Tasks, backends: Sequence[Backend]) -> Pair:
    """The cheapest placements; devices that are the processor must gain ``LEAST_GAIN``."""
    pair = place_together(tasks, backends)
    if not any(backend.is_processor for _, backend, _ in (*pair.prompts, *pair.replies)):
        return pair
    try:
        apart = place_together(tasks, [each for each in backends if not each.is_processor])
    except UnsupportedError:  # nothing else runs all nodes
        return pair
    return pair if pair.seconds <= (1 - LEAST_GAIN) * apart.seconds else apart


def _too_large(graph: Graph, backends: Sequence[Backend], budget: Budget) -> list[Refusal]:
    """Devices whose networks have no room in memory."""
    if budget.memory_bytes is None:
        return []
    weight_bytes = sum(constant.nbytes for constant in graph.constants.values())
    token_bytes = sum(kept_bytes(node) for node in graph.nodes)
    refusals = []
    for backend in backends:
        profile = backend.device_profile()
        if profile is None:
            continue
        held = profile.held_bytes(weight_bytes, budget.call_rows)
        if profile.mirrors:
            held += token_bytes * profile.room(budget.prompt_tokens + budget.reply_tokens)
        if held > budget.memory_bytes:
            reason = (
                "its networks, and the keys and values that it keeps, would take about "
                f"{held / 1e9:.2g} GB, and {budget.memory_bytes / 1e9:.2g} GB are free"
            )
            refusals.append(Refusal(backend.name, reason))
    return refusals


def _with_route(plan: Plan, tasks: Tasks, backends: Sequence[Backend], pair: Pair) -> Plan:
    """The plan with a route for prompts, where these go elsewhere and it pays in a call."""
    replies = {node.name: backend for node, backend, _ in pair.replies}
    if all(replies[node.name] is backend for node, backend, _ in pair.prompts):
        return plan
    from edgerun.plan.requests.splits import split_of

    split = split_of(tasks, pair.prompts, pair.replies)
    tokens, route = split.from_tokens(), None
    if tokens is not None:
        refusals = refusals_of(tasks.prompts, backends, pair.prompts)
        segments = segments_of(tasks.prompts, pair.prompts)
        route = Route(segments, refusals, max(tokens - 1, FEW_ROWS + 1))
    return replace(plan, prompts=route, splits=(split,))


def _with_trial(plan: Plan, tasks: Tasks, backends: Sequence[Backend], pair: Pair) -> Plan:
    """The plan with a device to try, where nothing goes elsewhere though something might.

    A device that is the processor is as slow as that was when both were measured.
    """
    real = [each for each in backends if not (each.is_processor or each.is_simulated)]
    if plan.prompts is not None or not any(each.device_profile() for each in real):
        return plan
    return replace(plan, trial=partial(_trial, tasks, real, pair))


def _trial(tasks: Tasks, backends: Sequence[Backend], pair: Pair) -> tuple[Split, Route] | None:
    """The device that is believed to lose least, and what would go there."""
    from edgerun.plan.requests.splits import other_splits

    splits = other_splits(tasks, backends, pair.replies, pair.replies)
    if not splits:
        return None
    split = min(splits, key=lambda each: each.seconds_there(each.longest))
    assert split.forecast is not None
    task, placed = split.forecast.prompts
    return split, Route(segments_of(task, placed), from_rows=NEVER)
