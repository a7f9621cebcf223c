"""What back-ends hold of a model's weights, and what of it decoding reads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from edgerun.backends.base import Backend, Phase
from edgerun.graph.shapes import node_work, value_shapes
from edgerun.ops.base import Work
from edgerun.ops.registry import OPS
from edgerun.plan.plans import Plan

ALL = Work(nbytes=1)  # of nodes that say nothing of themselves


def streamed_bytes(plan: Plan, backends: Sequence[Backend]) -> int:
    """Bytes of weights that a decode step streams: of experts as many as a row goes to.

    Constants of which a row reads a part only do not count.
    """
    by_name = {backend.name: backend for backend in backends}
    used: dict[str, float] = {}
    for segment in plan.segments[Phase.DECODE]:
        graph, keeps = segment.graph, by_name[segment.backend].weight_bytes
        shapes = value_shapes(graph)
        for node in graph.nodes:
            work = node_work(graph, node, shapes) if node.op in OPS else ALL
            share = work.active_experts(1) / work.experts if work.experts else bool(work.nbytes)
            for name in node.inputs if share else ():
                if name in graph.constants:
                    used[name] = keeps(graph, node, name) * share
    return round(sum(used.values()))


def held_bytes(
    plan: Plan, backends: Sequence[Backend], expert_bytes: int | None = None
) -> dict[str, int]:
    """Bytes of weights that each back-end holds in memory, by its name; once for all phases.

    Args:
        plan: says what runs where.
        backends: that it names.
        expert_bytes: that all experts together may take; None for all that they take.
    """
    by_name = {backend.name: backend for backend in backends}
    held: dict[str, dict[str, int]] = {}
    placed = [*plan.segments.values(), plan.prompts.segments if plan.prompts else ()]
    for segment in (segment for segments in placed for segment in segments):
        graph, keeps = segment.graph, by_name[segment.backend].weight_bytes
        for node in graph.nodes:
            parts = held.setdefault(segment.backend, {})
            if expert_bytes is not None and node.op == "experts":
                parts["experts"] = expert_bytes
                continue
            for name in node.inputs:
                if name in graph.constants:
                    parts[name] = keeps(graph, node, name)
    return {name: sum(parts.values()) for name, parts in held.items()}


def prompt_attention(plan: Plan, backends: Sequence[Backend]) -> dict[str, str]:
    """Nodes of attention that are to be faster in prompts; why one is not, or nothing."""
    by_name = {backend.name: backend for backend in backends}
    placed = [*plan.segments[Phase.PREFILL], *(plan.prompts.segments if plan.prompts else ())]
    layers: dict[str, str] = {}
    for segment in placed:
        if segment.backend in by_name:
            layers |= by_name[segment.backend].prompt_attention(segment.graph)
    return layers


def have_their_own(plan: Plan, backends: Sequence[Backend]) -> bool:
    """Whether prompts are computed otherwise than the same rows one by one."""
    attention = prompt_attention(plan, backends).values()
    return prompt_bytes(plan, backends) > 0 or not all(attention)


def prompt_bytes(plan: Plan, backends: Sequence[Backend]) -> int:
    """Bytes of weights that prompts have besides those of replies; once for all routes."""
    by_name = {backend.name: backend for backend in backends}
    placed = [*plan.segments[Phase.PREFILL], *(plan.prompts.segments if plan.prompts else ())]
    own = (each for each in placed if each.backend in by_name)
    held: dict[str, Mapping[str, int]] = {}
    for segment in own:
        parts = by_name[segment.backend].prompt_bytes(segment.graph)
        held[segment.backend] = {**held.get(segment.backend, {}), **parts}
    return sum(sum(parts.values()) for parts in held.values())
