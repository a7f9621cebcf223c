"""Layers of experts, in ops that every runtime has.

Each expert gathers the rows that the router sends to it, computes them, and adds them to a sum.
One that no row goes to multiplies nothing. docs/bundle.md shows the form, and its reasons are in
docs/adr/0021.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

import numpy as np

from edgerun_export.architectures import DecoderSpec, Experts, Projection
from edgerun_export.graph.blocks import softcapped
from edgerun_export.graph.onnx_graph import OnnxGraph, node_path
from edgerun_export.graph.weight_store import WeightStore

Projections: TypeAlias = Mapping[str, Projection]
# Adds a gated network: its input, the number of its layer, the path of its nodes, its projections.
Network: TypeAlias = Callable[[str, int, str, Projections], str]


def router_logits(
    graph: OnnxGraph,
    store: WeightStore,
    hidden: str,
    module: str,
    router: Projection,
    experts: Experts,
    at: str,
) -> str:
    """Adds a router, in float32: ``[batch, sequence, experts]`` at a path of nodes."""
    weight = store.transposed(f"{module}.{router.path}.weight")
    logits = graph.node("MatMul", [hidden, weight], f"{at}/MatMul")
    if router.bias:
        bias = store.vector(f"{module}.{router.path}.bias")
        logits = graph.node("Add", [logits, bias], f"{at}/Add")
    return logits if experts.softcap is None else softcapped(graph, logits, experts.softcap, at)


def expert_scores(graph: OnnxGraph, logits: str, experts: Experts, at: str) -> str:
    """Adds the scores of all experts."""
    if experts.scoring == "softmax":
        return graph.node("Softmax", [logits], f"{at}/Softmax", axis=-1)
    return graph.node("Sigmoid", [logits], f"{at}/Sigmoid")


def expert_ranks(
    graph: OnnxGraph,
    store: WeightStore,
    logits: str,
    scores: str,
    module: str,
    experts: Experts,
    at: str,
) -> str:
    """Adds what experts are chosen by: logits, or a sum of a bias and these, or scores."""
    if not experts.selection_bias:
        return logits
    name = f"{module}.{experts.selection_bias}"
    bias = store.derived(name, store.read_vector(name).reshape(-1))
    biased = {"scores": scores, "logits": logits}[experts.biased]
    return graph.node("Add", [biased, bias], f"{at}/ranks")


def ranks_in_groups(graph: OnnxGraph, ranks: str, experts: Experts, axes: int, at: str) -> str:
    """Adds what experts are chosen by where some groups of them are chosen first.

    Args:
        graph: what nodes are added to.
        ranks: what they are chosen by otherwise.
        experts: of the layer.
        axes: those that ``ranks`` has before that of experts.
        at: path of the nodes.
    """
    groups, add, before = experts.groups, graph.node, [0] * axes
    if groups is None:
        return ranks
    parts = add("Reshape", [ranks, graph.integers(*before, groups.count, -1)], f"{at}/groups")
    best = _largest(graph, parts, groups.best, f"{at}/groups/best")[0]
    worth = add("ReduceSum", [best, graph.integers(-1)], f"{at}/groups/worth", keepdims=0)
    chosen = _largest(graph, worth, groups.chosen, f"{at}/groups/TopK")[1]
    out_or_in = graph.constant(np.array([-np.inf, 0], np.float32))
    count = graph.integer(groups.count)
    each = add("OneHot", [chosen, count, out_or_in], f"{at}/groups/OneHot", axis=-2)
    left = add("ReduceMax", [each, graph.integers(-1)], f"{at}/groups/left", keepdims=1)
    parts = add("Add", [parts, left], f"{at}/groups/Add")
    return add("Reshape", [parts, graph.integers(*before, -1)], f"{at}/groups/ranks")


def _largest(graph: OnnxGraph, value: str, count: int, at: str) -> tuple[str, str]:
    """Adds the largest elements of a value, and their places; of equal ones the first."""
    outputs = graph.value(), graph.value()
    number = graph.integers(count)
    graph.node("TopK", [value, number], at, outputs=outputs, axis=-1, largest=1, sorted=1)
    return outputs


def chosen_scores(
    graph: OnnxGraph, scores: str, ranks: str, experts: Experts, at: str
) -> tuple[str, str]:
    """Adds the choice of experts by ``ranks``: their scores, and their numbers."""
    ids = _largest(graph, ranks, experts.top_k, f"{at}/TopK")[1]
    return graph.node("GatherElements", [scores, ids], f"{at}/GatherElements", axis=-1), ids


def mixed_scores(graph: OnnxGraph, logits: str, experts: Experts, at: str) -> tuple[str, str]:
    """Adds the choice of experts one by one: their scores, and their numbers.

    Each has a score by a softmax of its own, over what is not chosen yet and close enough.
    """
    add, nothing, rest = graph.node, graph.scalar(-np.inf), logits
    size, parts = add("Abs", [logits], f"{at}/Abs"), []
    for place in range(experts.top_k):
        own = f"{at}/choice.{place}"
        best, chosen = _largest(graph, rest, 1, f"{own}/TopK")
        difference = add("Sub", [best, logits], f"{own}/Sub")
        by = add("Max", [size, best], f"{own}/Max")
        apart = add("Div", [difference, by], f"{own}/Div")
        is_far = add("Greater", [apart, graph.scalar(experts.margin)], f"{own}/Greater")
        close = add("Where", [is_far, nothing, rest], f"{own}/Where")
        shares = add("Softmax", [close], f"{own}/Softmax", axis=-1)
        score = add("GatherElements", [shares, chosen], f"{own}/GatherElements", axis=-1)
        parts.append((score, chosen))
        if place + 1 < experts.top_k:
            removed = add("Add", [best, nothing], f"{own}/Add")
            inputs = [rest, chosen, removed]
            rest = add("ScatterElements", inputs, f"{own}/rest", axis=-1)
    scores, ids = zip(*parts, strict=True)
    both = add("Concat", [*scores], f"{at}/scores", axis=-1)
    return both, add("Concat", [*ids], f"{at}/ids", axis=-1)


def divided(graph: OnnxGraph, scores: str, chosen: str, experts: Experts, at: str) -> str:
    """Adds scores divided by the sum of those that are chosen."""
    total = graph.node("ReduceSum", [chosen, graph.integers(-1)], f"{at}/ReduceSum", keepdims=1)
    if experts.epsilon:
        total = graph.node("Add", [total, graph.scalar(experts.epsilon)], f"{at}/total")
    return graph.node("Div", [scores, total], f"{at}/Div")


class ExpertsBuilder:
    """Adds feed-forward layers that consist of experts."""

    def __init__(
        self, graph: OnnxGraph, store: WeightStore, spec: DecoderSpec, network: Network
    ) -> None:
        self._graph, self._store, self._spec, self._network = graph, store, spec, network

    def add(
        self,
        hidden: str,
        layer: int,
        router: Projection,
        networks: Sequence[Projections],
        routed: str,
    ) -> str:
        """Adds a layer of ``[batch, sequence, hidden]``, and returns as much.

        ``routed`` is what the router reads, of the same shape.
        """
        experts = self._spec.layers[layer].feed_forward
        assert isinstance(experts, Experts)
        return self._add(hidden, layer, experts, router, networks, routed)

    def add_shared(self, hidden: str, layer: int) -> str:
        """Adds the expert of a layer that all tokens go through: a layer of one."""
        shared, gate = self._spec.shared_expert(layer), self._spec.shared_gate(layer)
        assert shared is not None and gate is not None
        networks = [self._spec.shared_projections(layer)]
        return self._add(hidden, layer, shared.as_experts(), gate, networks, hidden)

    def _add(
        self,
        hidden: str,
        layer: int,
        experts: Experts,
        router: Projection,
        networks: Sequence[Projections],
        routed: str,
    ) -> str:
        module = f"model.layers.{layer}"
        at, add = node_path(f"{module}.{experts.module}"), self._graph.node
        logits = router_logits(
            self._graph, self._store, routed, module, router, experts, f"{at}/router"
        )
        routes = self._routes(logits, module, experts, f"{at}/router")
        rows = self._flat(hidden, self._spec.hidden_size, f"{at}/rows")
        routes = self._flat(routes, experts.count, f"{at}/routes")
        routes = add("Transpose", [routes], f"{at}/routes/Transpose", perm=[1, 0])
        total = self._nothing(rows, f"{at}/sum")
        for expert, projections in enumerate(networks):
            weights = sum(each.out_features * each.in_features for each in projections.values())
            self._store.begin_expert(weights)
            at_expert = f"{at}/experts.{expert}"
            total = self._expert(total, rows, routes, expert, layer, at_expert, projections)
        self._store.end_experts()
        shape = add("Shape", [hidden], f"{at}/Shape")
        return add("Reshape", [total, shape], f"{at}/experts")

    def _routes(self, logits: str, module: str, experts: Experts, at: str) -> str:
        """How much each token gets of each expert, ``[batch, sequence, experts]``."""
        graph, add = self._graph, self._graph.node
        if experts.scoring == "sparse_mixer":
            scores, ids = mixed_scores(graph, logits, experts, at)
            nothing = self._nothing(logits, at)
            return add("ScatterElements", [nothing, ids, scores], f"{at}/route", axis=-1)
        every = expert_scores(graph, logits, experts, at)
        ranks = expert_ranks(graph, self._store, logits, every, module, experts, at)
        ranks = ranks_in_groups(graph, ranks, experts, 2, at)
        scores, ids = chosen_scores(graph, every, ranks, experts, at)
        if experts.normalise:
            scores = divided(graph, scores, scores, experts, at)
        if experts.scale != 1:
            scores = add("Mul", [scores, graph.scalar(experts.scale)], f"{at}/Mul")
        nothing = self._nothing(logits, at)
        return add("ScatterElements", [nothing, ids, scores], f"{at}/route", axis=-1)

    def _expert(
        self,
        total: str,
        rows: str,
        routes: str,
        expert: int,
        layer: int,
        at: str,
        projections: Projections,
    ) -> str:
        """Adds to ``total`` what an expert makes of the rows ``[tokens, hidden]`` that it gets."""
        graph, add = self._graph, self._graph.node
        route = add("Gather", [routes, graph.integer(expert)], f"{at}/route", axis=0)
        places = add("NonZero", [route], f"{at}/NonZero")
        places = add("Transpose", [places], f"{at}/places", perm=[1, 0])
        taken = add("GatherND", [rows, places], f"{at}/rows")
        results = self._network(taken, layer, at, projections)
        weights = add("GatherND", [route, places], f"{at}/weights")
        weights = add("Unsqueeze", [weights, graph.integers(-1)], f"{at}/Unsqueeze")
        results = add("Mul", [results, weights], f"{at}/weighted")
        return add("ScatterND", [total, places, results], f"{at}/ScatterND", reduction="add")

    def _flat(self, value: str, width: int, at: str) -> str:
        """``[tokens, width]`` of ``[batch, sequence, width]``."""
        return self._graph.node(
            "Reshape", [value, self._graph.integers(-1, width)], f"{at}/Reshape"
        )

    def _nothing(self, value: str, at: str) -> str:
        """Zeros in the shape of a value."""
        shape = self._graph.node("Shape", [value], f"{at}/Shape")
        return self._graph.node("ConstantOfShape", [shape], f"{at}/ConstantOfShape")
