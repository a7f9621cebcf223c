"""A layer of experts as onnxruntime's own operator, QMoE, becomes ``route`` and ``experts``.

Gate and up projection are one stack there with their outputs in turns, so they are copied apart.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgerun.errors import BundleError
from edgerun.formats.base import PackedWeight
from edgerun.formats.stack import ExpertStack, Matrix
from edgerun.graph.attributes import Read, Rules
from edgerun.graph.ir import Graph, Node
from edgerun.graph.mapped_file import read_array
from edgerun.graph.match import Const, Matcher, Op, Pattern, Var
from edgerun.graph.passes.base import Pass
from edgerun.graph.passes.linear import FORMAT_KEY, FORMATS
from edgerun.graph.shapes import ALTERED

QMOE = "com.microsoft.QMoE"
# Its inputs; of a third matrix nothing may be given. The last are the weights of the chosen.
X, LOGITS, CODES, SCALES, BIAS, DOWN_CODES, DOWN_SCALES, DOWN_BIAS = range(8)
ZEROS, DOWN_ZEROS, THIRD_ZEROS, ROUTER_WEIGHTS = range(11, 15)
EXACT_BITS = 4  # with others onnxruntime rounds activations, whatever it is asked for
_LOGITS = Op("Reshape", Var("logits"), Const("shape"))
_SCORES: Mapping[str, Pattern] = {
    "softmax": Op("Softmax", _LOGITS, axis=-1),
    "sigmoid": Op("Sigmoid", _LOGITS),
}
# By alpha, beta and limit of its gate, the name of a file in ``activations/``.
_ACTIVATIONS = {
    (1.0, 0.0, None): "silu",
    (float(np.float32(1.702)), 1.0, 7.0): "clamped_swiglu",
}


def fuse_fused_experts(graph: Graph) -> Graph:
    """Rewrites every QMoE of a gated layer whose routes come from its own logits.

    Raises:
        BundleError: the sizes of its weights contradict each other.
    """
    if not any(node.op == QMOE for node in graph.nodes):
        return graph
    matcher = Matcher(graph)
    return graph.with_nodes(
        new
        for node in graph.nodes
        for new in (_rewrite(node, matcher) if node.op == QMOE else [node])
    )


def _rewrite(node: Node, matcher: Matcher) -> list[Node]:
    inputs = [*node.inputs, *[""] * (ROUTER_WEIGHTS + 1)][: ROUTER_WEIGHTS + 1]
    attrs = node.attrs
    gate = attrs["activation_alpha"], attrs["activation_beta"], attrs.get("swiglu_limit")
    if gate not in _ACTIVATIONS or not _has_form(node, inputs, matcher.graph):
        return [node]
    route = _route(node, inputs[LOGITS], inputs[ROUTER_WEIGHTS], matcher)
    if route is None:
        return [node]
    stacks = _stacks(node, inputs, matcher.graph)
    names = [f"{node.name}/{name}" for name in stacks]
    for name, stack in zip(names, stacks.values(), strict=True):
        matcher.graph.add_constant(name, stack)
    exact = attrs["expert_weight_bits"] == EXACT_BITS and attrs["accuracy_level"] != 4
    attributes = {
        "top_k": attrs["k"],
        "activation": _ACTIVATIONS[gate],
        "activations": "float" if exact else "int8_block",
    }
    layer = (inputs[X], route.outputs[0], *names)
    return [route, Node("experts", node.name, layer, node.outputs, attributes)]


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


def _route(node: Node, logits: str, weights: str, matcher: Matcher) -> Node | None:
    """The choice of experts; None if it is made of something else than logits of a router."""
    flat = matcher.match(logits, _LOGITS)
    if flat is None or matcher.graph.array(flat["shape"]).reshape(-1).tolist()[:1] != [-1]:
        return None
    scoring, normalise = "softmax", node.attrs["normalize_routing_weights"]
    if weights:
        matches = {name: matcher.match(weights, form) for name, form in _SCORES.items()}
        scoring = next((name for name, match in matches.items() if match is not None), "")
        match = matches.get(scoring)
        if match is None or match["logits"] != flat["logits"] or match["shape"] != flat["shape"]:
            return None
    elif normalise != 1:
        return None
    attributes = {
        "top_k": node.attrs["k"],
        "scoring": scoring,
        "normalise": normalise,
        "epsilon": 0.0,
        "scale": 1.0,
    }
    outputs = (f"{node.name}/routes",)
    return Node("route", f"{node.name}/route", (flat["logits"],), outputs, attributes)


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
        BundleError: they do not fit each other.
    """
    codes, scales = (graph.array(name) for name in names[:2])
    bits, block = node.attrs["expert_weight_bits"], node.attrs["block_size"]
    blocks = scales.shape[2] if scales.ndim == 3 else 0
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
    name, size = node.metadata.get(FORMAT_KEY, FORMATS[bits]), blocks * block
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
    "Reshape": {"allowzero": 0},
    "Softmax": {"axis": Read(int, -1)},
}
PASS = Pass(8, fuse_fused_experts, READS)
