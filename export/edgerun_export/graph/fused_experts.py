"""Layers of experts as one operator of onnxruntime, ``com.microsoft.QMoE``.

It has the weights of all experts in stacks, gate and up projection in one with their outputs in
turns, and multiplies by those that are chosen. docs/bundle.md shows the form.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from edgerun.activations.clamped_swiglu import ALPHA, LIMIT
from edgerun_export.architectures import DecoderSpec, Experts, Projection
from edgerun_export.graph.experts import (
    Projections,
    chosen_scores,
    divided,
    expert_ranks,
    expert_scores,
    ranks_in_groups,
    router_logits,
)
from edgerun_export.graph.linear import FORMAT_KEY
from edgerun_export.graph.onnx_graph import CONTRIB_DOMAIN, OnnxGraph, node_path
from edgerun_export.graph.weight_store import WeightStore
from edgerun_export.quantize import block_layout
from edgerun_export.recipe import Recipe, TensorRecipe

# Gated activations as the operator knows them.
SWIGLU: Mapping[str, Mapping[str, float]] = {
    "silu": {"activation_alpha": 1.0, "activation_beta": 0.0},
    "clamped_swiglu": {
        "activation_alpha": ALPHA,
        "activation_beta": 1.0,
        "swiglu_limit": LIMIT,
    },
}
# By the name of a stack, the projections in it.
STACKS: Mapping[str, tuple[str, ...]] = {
    "gate_up_proj": ("gate_proj", "up_proj"),
    "down_proj": ("down_proj",),
}
MANY_EXPERTS = 1024  # what other runtimes open a graph of in seconds
EXACT_BITS = 4  # with others the operator rounds activations, whatever it is asked for


def obstacle(spec: DecoderSpec, recipe: Recipe) -> str:
    """Why the operator cannot compute a decoder's experts as is asked for; empty if it can."""
    experts = [part for layer in spec.layers if isinstance(part := layer.feed_forward, Experts)]
    kinds = [_recipes(spec, recipe, layer) for layer in range(spec.num_layers)]
    if any(len(kind) > 1 for kind in kinds):
        return "the experts of a layer have several formats"
    if any(each.weights == "fp32" for kind in kinds for each in kind):
        return "it takes quantised weights only"
    if spec.ternary is not None:
        return "it does not round rows as natively ternary models do"
    if not all(part.gated for part in experts):
        return "it takes experts with gates only"
    if any(part.scoring == "sparse_mixer" for part in experts):
        return "it does not score experts one after the other"
    if spec.activation not in SWIGLU:
        return f"it does not know the activation {spec.activation}"
    inexact = [each.weights for kind in kinds for each in kind if each.bits != EXACT_BITS]
    if inexact:
        return f"with {inexact[0]} weights in groups it always rounds activations, and coarsely"
    widths = [spec.hidden_size, *(part.width for part in experts)]
    groups = sorted({each.group_size for kind in kinds for each in kind})
    uneven = [(width, group) for group in groups for width in widths if width % group]
    if uneven:
        return "rows of {} weights are no whole groups of {}".format(*uneven[0])
    return ""


def _recipes(spec: DecoderSpec, recipe: Recipe, layer: int) -> set[TensorRecipe]:
    """How a layer's experts are stored; empty without any."""
    if not isinstance(spec.layers[layer].feed_forward, Experts):
        return set()
    networks = spec.feed_forward(layer)
    paths = (projection.path for network in networks for projection in network.values())
    return {recipe.tensor(f"model.layers.{layer}.{path}") for path in paths}


def expert_warnings(spec: DecoderSpec, recipe: Recipe) -> list[str]:
    """What other runtimes will find hard, and where the operator cannot do what is asked for."""
    parts = (layer.feed_forward for layer in spec.layers)
    count = sum(part.count for part in parts if isinstance(part, Experts))
    fuses, reason = recipe.target.fuses_experts, obstacle(spec, recipe)
    warnings = []
    if count > MANY_EXPERTS and (reason or not fuses):
        warnings.append(
            f"{count} experts are written out one by one: edgerun opens such a graph in a "
            "second, but onnxruntime takes most of a minute and OpenVINO many; run it in "
            "edgerun, or for onnxruntime export int4 weights with --profile genai"
        )
    if count and fuses and reason:
        warnings.append(
            "experts are written out one by one, as in the portable profile, since QMoE, "
            f"onnxruntime's operator for all of a layer, cannot be used: {reason}"
        )
    return warnings


class FusedExperts:
    """Adds feed-forward layers that consist of experts."""

    def __init__(
        self, graph: OnnxGraph, store: WeightStore, spec: DecoderSpec, recipe: Recipe
    ) -> None:
        self._graph, self._store, self._spec, self._recipe = graph, store, spec, recipe

    def add(
        self,
        hidden: str,
        layer: int,
        router: Projection,
        networks: Sequence[Projections],
        routed: str,
    ) -> str:
        """Adds a layer of ``[batch, sequence, hidden]``; see ``ExpertsBuilder.add``."""
        experts = self._spec.layers[layer].feed_forward
        assert isinstance(experts, Experts)
        module, graph = f"model.layers.{layer}", self._graph
        (recipe,) = _recipes(self._spec, self._recipe, layer)
        at = node_path(f"{module}.{experts.module}")
        logits = router_logits(graph, self._store, routed, module, router, experts, f"{at}/router")
        shape = graph.integers(-1, experts.count)
        logits = graph.node("Reshape", [logits, shape], f"{at}/router/Reshape")
        both, down = (self._stack(module, experts, stack, networks) for stack in STACKS)
        zeros = [both.pop(), down.pop()]
        ranks, weights = self._routing(logits, module, experts, f"{at}/router")
        rest = ["", "", "", *zeros, "", weights]  # three of a third matrix, and its zero points
        while rest and not rest[-1]:
            del rest[-1]
        return graph.node(
            "QMoE",
            [hidden, ranks, *both, *down, *rest],
            f"{at}/QMoE",
            domain=CONTRIB_DOMAIN,
            metadata={FORMAT_KEY: block_layout(recipe.weights).stored_as},
            k=experts.top_k,
            activation_type="swiglu",
            swiglu_fusion=1,
            expert_weight_bits=recipe.bits,
            block_size=recipe.group_size,
            normalize_routing_weights=int(_leaves_division(experts)),
            accuracy_level=4 if self._recipe.accuracy_level == 4 else 0,
            **dict[str, Any](SWIGLU[self._spec.activation]),
        )

    def _stack(
        self,
        module: str,
        experts: Experts,
        stack: str,
        networks: Sequence[Projections],
    ) -> list[str]:
        """Codes, scales, biases and zero points of a stack; empty what there is not."""
        names = STACKS[stack]
        paths = [[f"{module}.{network[name].path}" for name in names] for network in networks]
        whole = f"{module}.{experts.module}.experts.{stack}"
        stored = self._store.stack(
            f"{whole}.weight", [[f"{path}.weight" for path in group] for group in paths]
        )
        bias = ""
        if experts.biases:
            bias = self._store.stack_vectors(
                f"{whole}.bias", [[f"{path}.bias" for path in group] for group in paths]
            )
        return [stored.codes, stored.scales, bias, stored.zeros]

    def _routing(self, logits: str, module: str, experts: Experts, at: str) -> tuple[str, str]:
        """What the operator chooses by, and what makes weights of the chosen.

        That is empty if it is the softmax over their logits.
        """
        graph = self._graph
        if not _needs_scores(experts):
            return ranks_in_groups(graph, logits, experts, 1, at), ""
        scores = expert_scores(graph, logits, experts, at)
        weights = scores
        ranks = expert_ranks(graph, self._store, logits, scores, module, experts, at)
        ranks = ranks_in_groups(graph, ranks, experts, 1, at)
        if experts.normalise and not _leaves_division(experts):
            chosen, _ = chosen_scores(graph, scores, ranks, experts, at)
            weights = divided(graph, scores, chosen, experts, at)
        if experts.scale != 1:
            weights = graph.node("Mul", [weights, graph.scalar(experts.scale)], f"{at}/Mul")
        return ranks, weights


def _leaves_division(experts: Experts) -> bool:
    """Whether the operator divides by the sum of the chosen; it could do nothing after that."""
    return experts.normalise and not experts.epsilon and experts.scale == 1


def _needs_scores(experts: Experts) -> bool:
    """Whether weights are no softmax over the logits of the chosen."""
    plain = experts.scoring == "softmax" and not experts.selection_bias
    return not plain or not _leaves_division(experts)
