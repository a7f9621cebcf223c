"""Plans in which rows of prompts may go elsewhere than all others."""

from __future__ import annotations

from dataclasses import replace

from edgerun.backends.registry import Candidates
from edgerun.errors import UnsupportedError
from edgerun.graph.ir import Graph, Node
from edgerun.ops.registry import OPS
from edgerun.plan.planner import cost_bases, make_plan, plan_prompts
from edgerun.plan.plans import Plan
from edgerun.plan.tasks import USUAL, Budget


def plan_for(
    graph: Graph, candidates: Candidates, budget: Budget = USUAL, *, weighs_all: bool = False
) -> Plan:
    """Chooses the cheapest placement for every phase, and for prompts where they go elsewhere.

    Args:
        graph: lowered.
        candidates: what to plan with.
        budget: the requests to plan for, where a device was measured.
        weighs_all: see ``plan_together``.

    Raises:
        UnsupportedError: some node runs on none of the candidates.
    """
    prompts, backends = candidates.prompts, candidates.backends
    measured = any(backend.device_profile() for backend in backends)
    if prompts is None and candidates.preferred is None and measured:
        from edgerun.plan.requests.together import (
            plan_together,  # where nothing was measured, not needed
        )

        return plan_together(graph, backends, budget, weighs_all=weighs_all)
    plan = make_plan(graph, backends, candidates.preferred)
    if prompts is None:
        return plan
    route = plan_prompts(prompt_graph(graph), prompts.backends, prompts.preferred)
    bases = cost_bases(candidates.every())
    return replace(plan, bases=bases, prompts=route)


def prompt_graph(graph: Graph) -> Graph:
    """What tokens leave in the cache: the nodes without which it would not be there.

    Raises:
        UnsupportedError: the graph has ops of its own, of which nobody knows what they keep.
    """
    if graph.refusal:
        raise UnsupportedError(f"prompts of this model cannot be placed apart: {graph.refusal}")
    needed: set[str] = set()
    nodes: list[Node] = []
    for node in reversed(graph.nodes):
        if OPS[node.op].state is not None or needed.intersection(node.outputs):
            needed.update(node.inputs)
            nodes.append(node)
    return replace(graph, outputs=[]).with_nodes(nodes[::-1])
