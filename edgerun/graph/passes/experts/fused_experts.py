"""A layer of experts as onnxruntime's own operator, QMoE, becomes ``route`` and ``experts``.

Gate and up projection are one stack there with their outputs in turns, so they are copied apart.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from edgerun.errors import BundleError, UnsupportedError
from edgerun.formats.base import PackedWeight
from edgerun.formats.stack import ExpertStack, Matrix
from edgerun.graph.attributes import Read, Rules
from edgerun.graph.ir import Graph, Node
from edgerun.graph.mapped_file import read_array
from edgerun.graph.match import Const, Match, Matcher, Num, Op, Pattern, Var
from edgerun.graph.passes.base import Pass
from edgerun.graph.passes.experts import biases, groups
from edgerun.graph.passes.linear import FORMAT_KEY, FORMATS
from edgerun.graph.shapes import ALTERED

QMOE = "com.microsoft.QMoE"
# Its inputs; of a third matrix nothing may be given. The last are the weights of the chosen.
X, LOGITS, CODES, SCALES, BIAS, DOWN_CODES, DOWN_SCALES, DOWN_BIAS = range(8)
ZEROS, DOWN_ZEROS, THIRD_ZEROS, ROUTER_WEIGHTS = range(11, 15)
MOST_LAYERS, MOST_EXPERTS = 1024, 4096  # each takes time and memory whatever its size
EXACT_BITS = 4  # with others onnxruntime rounds activations, whatever it is asked for
_AXES = 1  # of logits, before that of experts
_LOGITS = Op("Reshape", Var("logits"), Const("shape"))
_SCORES: Mapping[str, Pattern] = {
    "softmax": Op("Softmax", _LOGITS, axis=-1),
    "sigmoid": Op("Sigmoid", _LOGITS),
}


@dataclass(frozen=True, slots=True)
class _Routing:
    """A way to say where rows go, and how much each expert counts.

    Attributes:
        scoring: what makes scores of logits.
        divided: whether scores are divided by the sum of the chosen before the operator gets them.
        grouped: whether groups of experts are chosen first.
        constants: those of ``_OPTIONAL`` that there are.
        ranks: what it chooses by.
        weights: what it weighs the chosen by; None for the softmax over their logits.
    """

    scoring: str
    divided: bool
    grouped: bool
    constants: frozenset[str]
    ranks: Pattern
    weights: Pattern | None

    def match(self, ranks: str, weights: str, matcher: Matcher) -> Match | None:
        """What both have captured; None if one has another form, or they are of other logits."""
        first = matcher.match(ranks, self.ranks)
        if first is None or self.weights is None:
            return None if weights else first
        second = matcher.match(weights, self.weights)
        if second is None:
            return None
        both = second.values | first.values
        is_same = all(both[name] == value for name, value in second.values.items())
        second.values = both
        return second if is_same else None


def _routings() -> Iterator[_Routing]:
    yield _Routing("softmax", False, False, frozenset(), _LOGITS, None)
    chosen = groups.in_chosen_groups(_LOGITS, _AXES)
    yield _Routing("softmax", False, True, frozenset(), chosen, None)
    ways = product(_SCORES, (False, True), (False, True), biases.options())
    for scoring, divided, grouped, constants in ways:
        if divided or "epsilon" not in constants:
            yield _routing(scoring, divided, grouped, constants)


def _routing(scoring: str, divided: bool, grouped: bool, constants: frozenset[str]) -> _Routing:
    scores = weights = _SCORES[scoring]
    ranks: Pattern = Op("Add", scores, Const("bias")) if "bias" in constants else _LOGITS
    if "logit_bias" in constants:
        ranks = Op("Add", ranks, Const("logit_bias"))
    if grouped:
        ranks = groups.in_chosen_groups(ranks, _AXES)
    if divided:
        ids = Op("TopK", ranks, Const("top_k"), output=1, axis=-1, largest=1, sorted=1)
        chosen = Op("GatherElements", scores, ids, axis=-1)
        total = Op("ReduceSum", chosen, Num(-1), keepdims=1)
        total = Op("Add", total, Const("epsilon")) if "epsilon" in constants else total
        weights = Op("Div", scores, total)
    if "scale" in constants:
        weights = Op("Mul", weights, Const("scale"))
    return _Routing(scoring, divided, grouped, constants, ranks, weights)


_ROUTINGS = tuple(_routings())
# By alpha, beta and limit of its gate, the name of a file in ``activations/``.
_ACTIVATIONS = {
    (1.0, 0.0, None): "silu",
    (float(np.float32(1.702)), 1.0, 7.0): "clamped_swiglu",
}


# By what stacks are made of, the names of them.
_Copies: TypeAlias = dict[tuple[Any, ...], list[str]]


def fuse_fused_experts(graph: Graph) -> Graph:
    """Rewrites every QMoE of a gated layer whose routes come from its own logits.

    Raises:
        BundleError: the sizes of its weights contradict each other.
        UnsupportedError: there are more than any model has.
    """
    count = sum(node.op == QMOE for node in graph.nodes)
    if not count:
        return graph
    if count > MOST_LAYERS:
        raise UnsupportedError(
            f"the model file has {count} nodes of {QMOE}; expected at most {MOST_LAYERS}"
        )
    matcher = Matcher(graph)
    copies: _Copies = {}
    return graph.with_nodes(
        new
        for node in graph.nodes
        for new in (_rewrite(node, matcher, copies) if node.op == QMOE else [node])
    )


def _rewrite(node: Node, matcher: Matcher, copies: _Copies) -> list[Node]:
    inputs = [*node.inputs, *[""] * (ROUTER_WEIGHTS + 1)][: ROUTER_WEIGHTS + 1]
    attrs = node.attrs
    gate = attrs["activation_alpha"], attrs["activation_beta"], attrs.get("swiglu_limit")
    if gate not in _ACTIVATIONS or not _has_form(node, inputs, matcher.graph):
        return [node]
    route = _route(node, inputs[LOGITS], inputs[ROUTER_WEIGHTS], matcher)
    if route is None:
        return [node]
    origin = *inputs[CODES:ROUTER_WEIGHTS], *_storage(node)
    if origin not in copies:  # layers may share weights, of which copies are made
        stacks = _stacks(node, inputs, matcher.graph)
        copies[origin] = [f"{node.name}/{name}" for name in stacks]
        for name, stack in zip(copies[origin], stacks.values(), strict=True):
            matcher.graph.add_constant(name, stack)
    exact = attrs["expert_weight_bits"] == EXACT_BITS and attrs["accuracy_level"] != 4
    attributes = {
        "top_k": attrs["k"],
        "activation": _ACTIVATIONS[gate],
        "activations": "float" if exact else "int8_block",
    }
    layer = (inputs[X], route.outputs[0], *copies[origin])
    return [route, Node("experts", node.name, layer, node.outputs, attributes)]


def _storage(node: Node) -> tuple[int, int, str | None]:
    """How weights are stored: bits, weights of a block, and what the file's author says of it."""
    bits, block = node.attrs["expert_weight_bits"], node.attrs["block_size"]
    return bits, block, node.metadata.get(FORMAT_KEY)


def _has_form(node: Node, inputs: list[str], graph: Graph) -> bool:
    """Whether its gate and up take turns, weights are constants, and biases are there or not."""
    stored = [inputs[place] for place in (CODES, SCALES, DOWN_CODES, DOWN_SCALES)]
    stored += filter(None, (inputs[i] for i in (BIAS, DOWN_BIAS, ZEROS, DOWN_ZEROS)))
    return (
        (node.attrs["activation_type"], node.attrs["swiglu_fusion"]) == ("swiglu", 1)
        and bool(inputs[BIAS]) == bool(inputs[DOWN_BIAS])
        and all(name in graph.constants for name in stored)
        and not any((*inputs[DOWN_BIAS + 1 : ZEROS], inputs[THIRD_ZEROS]))
        and not any(node.inputs[ROUTER_WEIGHTS + 1 :])
    )


def _route(node: Node, ranks: str, weights: str, matcher: Matcher) -> Node | None:
    """The choice of experts; None if it is made of something else than logits of a router."""
    for routing in _ROUTINGS:
        match = routing.match(ranks, weights, matcher)
        attributes = None if match is None else _attributes(node, routing, match, matcher)
        if match is not None and attributes is not None:
            outputs = (f"{node.name}/routes",)
            inputs = (match["logits"], *biases.bias_of(match, routing.constants))
            return Node("route", f"{node.name}/route", inputs, outputs, attributes)
    return None


def _attributes(
    node: Node, routing: _Routing, match: Match, matcher: Matcher
) -> dict[str, Any] | None:
    """Of the choice of experts; None if what is written out and the operator contradict."""
    numbers = matcher.numbers(match, routing.constants - biases.ADDED_TO.keys())
    flat = matcher.graph.array(match["shape"]).reshape(-1).tolist()[:1] == [-1]
    normalise, top_k = node.attrs["normalize_routing_weights"], node.attrs["k"]
    if routing.weights is None:
        agrees = normalise == 1
    else:  # what the operator divides by the sum has lost any sum and factor from before
        agrees = not normalise or not (routing.divided or "scale" in routing.constants)
    if routing.divided:
        agrees &= matcher.number(match["top_k"]) == top_k
    of_groups = groups.groups_of(match, matcher, _AXES) if routing.grouped else groups.NO_GROUPS
    if numbers is None or of_groups is None or not flat or not agrees:
        return None
    return {
        "top_k": top_k,
        "scoring": routing.scoring,
        "biased": biases.added_to(routing.constants),
        "normalise": int(routing.divided) or normalise,
        **{"epsilon": 0.0, "scale": 1.0, "margin": 0.0},
        **numbers,
        **of_groups,
    }


def _stacks(node: Node, inputs: list[str], graph: Graph) -> dict[str, ExpertStack]:
    """The stacks of an ``experts`` node, in the order of its inputs."""
    names = [inputs[i] for i in (CODES, SCALES, ZEROS)]
    both = _matrices(node, names, graph, turns=2)
    names = [inputs[i] for i in (DOWN_CODES, DOWN_SCALES, DOWN_ZEROS)]
    (down,) = _matrices(node, names, graph, turns=1)
    stacks = {"gate": both[0], "up": both[1], "down": down}
    if inputs[BIAS]:
        gate, up = _vectors(node, inputs[BIAS], graph, both[0].shape, turns=2)
        stacks |= {"gate_bias": gate, "up_bias": up}
        (stacks["down_bias"],) = _vectors(node, inputs[DOWN_BIAS], graph, down.shape, turns=1)
    return stacks


def _matrices(node: Node, names: list[str], graph: Graph, *, turns: int) -> list[ExpertStack]:
    """The matrices whose rows take turns in a stack of codes, scales and maybe zero points.

    Raises:
        BundleError: they do not fit each other, or are too many.
    """
    codes, scales = (graph.array(name) for name in names[:2])
    bits, block, stated = _storage(node)
    blocks = scales.shape[2] if scales.ndim == 3 else 0
    if blocks and len(scales) > MOST_EXPERTS:
        raise BundleError(
            f"node '{node.name}' has {len(scales)} experts; expected at most {MOST_EXPERTS}: "
            f"{ALTERED}"
        )
    fits = (
        bits in FORMATS
        and block > 0
        and codes.dtype == np.uint8
        and scales.dtype == np.float32
        and scales.size > 0
        and codes.shape == (*scales.shape[:2], blocks * block * bits // 8)
        and codes.shape[1] % turns == 0
    )
    if not fits:
        raise BundleError(
            f"node '{node.name}' has codes {codes.dtype} {codes.shape} and scales {scales.dtype} "
            f"{scales.shape} for {bits} bits in blocks of {block}, which do not fit: {ALTERED}"
        )
    arrays = [codes.reshape(*codes.shape[:2], blocks, -1), scales]
    arrays += [_zeros(node, names[2], graph, scales.shape)] if names[2] else []
    name, size = stated or FORMATS[bits], blocks * block
    stacks: list[list[Matrix]] = [[] for _ in range(turns)]
    for parts in zip(*arrays, strict=True):
        for turn, matrices in enumerate(stacks):
            some = [_rows(array, turn, turns) for array in parts]
            matrices.append(PackedWeight(name, (len(some[0]), size), block, *some))
    return [ExpertStack(tuple(matrices)) for matrices in stacks]


def _zeros(node: Node, name: str, graph: Graph, scales: tuple[int, ...]) -> NDArray[np.uint8]:
    """Zero points of a stack, packed like the codes.

    Raises:
        BundleError: they are not those of so many scales.
    """
    zeros, bits = graph.array(name), node.attrs["expert_weight_bits"]
    expected = (*scales[:2], -(-scales[2] * bits // 8))
    if zeros.dtype != np.uint8 or zeros.shape != expected:
        raise BundleError(
            f"node '{node.name}' has zero points {zeros.dtype} {zeros.shape}; expected uint8 "
            f"{expected}: {ALTERED}"
        )
    return zeros


def _vectors(
    node: Node, name: str, graph: Graph, shape: tuple[int, ...], *, turns: int
) -> list[ExpertStack]:
    """The biases whose elements take turns in a stack.

    Raises:
        BundleError: there are none of each expert and output.
    """
    bias = graph.array(name)
    if bias.dtype != np.float32 or bias.shape != (shape[0], turns * shape[1]):
        raise BundleError(
            f"node '{node.name}' has biases {bias.dtype} {bias.shape}; expected float32 "
            f"{(shape[0], turns * shape[1])}: {ALTERED}"
        )
    return [ExpertStack(tuple(_rows(each, turn, turns) for each in bias)) for turn in range(turns)]


def _rows(array: NDArray[Any], turn: int, turns: int) -> NDArray[Any]:
    """Every ``turns``-th row; the file's own if that is all of them."""
    if turns == 1:
        return array
    return np.ascontiguousarray(read_array(array)[turn::turns])


# From the operator specification of onnxruntime.
READS: Mapping[str, Rules] = {
    QMOE: {
        "k": Read(int, 1),
        "activation_type": Read(str, "relu"),
        "activation_alpha": Read(float, 1.0),
        "activation_beta": Read(float, 0.0),
        "swiglu_limit": Read(float),
        "swiglu_fusion": Read(int, 0),
        "expert_weight_bits": Read(int, 4),
        "block_size": Read(int, 0),
        "normalize_routing_weights": Read(int, 0),
        "accuracy_level": Read(int, 0),
        "use_sparse_mixer": 0,
    },
    **groups.READS,
    "GatherElements": {"axis": Read(int, 0)},
    "ReduceSum": {"keepdims": Read(int, 1), "noop_with_empty_axes": 0},
    "Reshape": {"allowzero": 0},
    "Softmax": {"axis": Read(int, -1)},
    "TopK": {"axis": Read(int, -1), "largest": Read(int, 1), "sorted": Read(int, 1)},
}
PASS = Pass(8, fuse_fused_experts, READS)
