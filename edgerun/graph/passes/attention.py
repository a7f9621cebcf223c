"""The standard Attention op with its mask, heads and cache becomes ``attention`` on rows.

Rows ``[tokens, heads * head_dim]`` need no Reshape and Transpose: the ones around attention
disappear here.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from edgerun.errors import BundleError
from edgerun.graph.attributes import Read, Rules
from edgerun.graph.ir import Graph, Node
from edgerun.graph.match import Const, Match, Matcher, Num, Op, Var
from edgerun.graph.passes.base import Pass
from edgerun.graph.passes.states import check_states, layer_of
from edgerun.graph.shapes import ALTERED

BOOL = 9  # onnx.TensorProto
HEADS_FIRST = (0, 2, 1, 3)  # and back
_MOST_OF_HEADS = 2  # nodes: a rotary, and a norm before or after it
_SHARING, _KEEPING = 4, 6  # inputs of a node without keys and values of its own, and with them

_TOTAL = Op("Shape", Var("attention_mask"), start=1, end=2)
_PAST = Op("Sub", _TOTAL, Op("Shape", Var("input_ids"), start=1, end=2))
_COLUMNS = Op("Range", Num(0), Op("Squeeze", _TOTAL, Num(0)), Num(1))
_ROWS = Op(
    "Unsqueeze",
    Op("Range", Op("Squeeze", _PAST, Num(0)), Op("Squeeze", _TOTAL, Num(0)), Num(1)),
    Num(1),
)
_CAUSAL = Op("LessOrEqual", _COLUMNS, _ROWS)
_RECENT = Op("Greater", _COLUMNS, Op("Sub", _ROWS, Const("window")))
_PADDING = Op("Cast", Op("Unsqueeze", Var("attention_mask"), Num((1, 2))), to=BOOL)
_FULL_MASK = Op("And", _CAUSAL, _PADDING)
_WINDOW_MASK = Op("And", Op("And", _CAUSAL, _RECENT), _PADDING)
_HEADS = Op("Transpose", Var("split"), perm=HEADS_FIRST)
_SPLIT = Op("Reshape", Var("flat"), Const("shape"))
_JOINED = Op("Reshape", Op("Transpose", Var("attended"), perm=HEADS_FIRST), Const("shape"))
_TOTAL_SCORE = Op(
    "ReduceLogSumExp",
    Op("Where", Var("mask"), Var("scores"), Num(-math.inf)),
    Num(-1),
    keepdims=1,
)
_SUNK = Op("Mul", Var("attended"), Op("Sigmoid", Op("Sub", _TOTAL_SCORE, Const("sinks"))))


def fuse_attention(graph: Graph) -> Graph:
    """Rewrites every Attention node whose surroundings have the exporter's form."""
    matcher = Matcher(graph)
    rewritten: dict[str, list[Node]] = {}
    masks = {}
    for node in graph.nodes:
        if node.op != "Attention" or len(node.inputs) not in (_SHARING, _KEEPING):
            continue
        mask = node.inputs[3]
        if mask not in masks:
            masks[mask] = _window(mask, matcher)
        window = masks[mask]
        if window is not None:
            rewrite = _rewrite if len(node.inputs) == _KEEPING else _rewrite_shared
            rewritten.update(rewrite(node, matcher, window))
    nodes = [new for node in graph.nodes for new in rewritten.get(node.name, [node])]
    return graph.with_nodes(nodes)


def _window(mask: str, matcher: Matcher) -> int | None:
    """Window of a causal mask (0: unlimited), or None when the mask is something else."""
    match = matcher.match(mask, _FULL_MASK)
    if match is not None:
        return 0 if _reads_inputs(match) else None
    match = matcher.match(mask, _WINDOW_MASK)
    if match is None or not _reads_inputs(match):
        return None
    window = matcher.number(match["window"])
    if window is None:
        return None
    if not window >= 1 or not window.is_integer():
        raise BundleError(f"mask '{mask}' has a window of {window:g} positions; expected 1 or more")
    return int(window)


def _reads_inputs(match: Match) -> bool:
    return (match["attention_mask"], match["input_ids"]) == ("attention_mask", "input_ids")


def _rewrite(node: Node, matcher: Matcher, window: int) -> dict[str, list[Node]]:
    """Replacement nodes by the name of the node they replace; empty when the form differs."""
    layer = _layer(node, matcher)
    q, k, v = (_heads(name, matcher) for name in node.inputs[:3])
    if layer is None or q is None or k is None or v is None or v.is_turned:
        return {}
    if (v.count, v.size) != (k.count, k.size) or k.size != q.size:
        raise BundleError(
            f"node '{node.name}' has queries of {q.count} heads of {q.size}, keys of {k.count} of "
            f"{k.size} and values of {v.count} of {v.size}; expected one size, and as many heads "
            "of values as of keys"
        )
    attended, sinks = _beside_sinks(node, q.count, matcher)
    joined = _join(attended, q.count * q.size, matcher)
    if joined is None:
        return {}
    key, value = (*node.outputs[1:3], "", "")[:2]
    check_states(matcher, node, layer, key=key, value=value)
    attention = Node(
        op="attention",
        name=node.name,
        inputs=(q.rows, k.rows, v.rows, *sinks),
        outputs=joined.outputs,
        attrs=_attributes(node, layer, q, k.count, window),
    )
    return {node.name: [*q.nodes, *k.nodes, *v.nodes, attention], joined.name: []}


def _rewrite_shared(node: Node, matcher: Matcher, window: int) -> dict[str, list[Node]]:
    """The same for a node that attends to keys and values of an earlier one."""
    source = matcher.producers.get(node.inputs[1])
    if source is None or source.op != "Attention" or len(source.inputs) != _KEEPING:
        return {}
    layer, keys = _layer(source, matcher), _heads(source.inputs[1], matcher)
    same = source.outputs[1:3] == node.inputs[1:3]
    q = _heads(node.inputs[0], matcher)
    if layer is None or keys is None or q is None or not same or not _has_scale(node):
        return {}
    if keys.size != q.size:
        raise BundleError(
            f"node '{node.name}' has queries of {q.size} elements for keys of '{source.name}', "
            f"which have {keys.size}: {ALTERED}"
        )
    joined = _join(node.outputs[0], q.count * q.size, matcher)
    if joined is None or len(node.outputs) != 1:
        return {}
    attributes = _attributes(node, layer, q, keys.count, window)
    attention = Node("shared_attention", node.name, (q.rows,), joined.outputs, attributes)
    return {node.name: [*q.nodes, attention], joined.name: []}


def _attributes(node: Node, layer: int, q: _Heads, kv_heads: int, window: int) -> dict[str, Any]:
    return {
        "layer": layer,
        "num_heads": q.count,
        "num_kv_heads": kv_heads,
        "head_dim": q.size,
        "scale": node.attrs["scale"],
        "window": window,
        "softcap": node.attrs["softcap"],
    }


def _has_scale(node: Node) -> bool:
    return not node.attrs["is_causal"] and "scale" in node.attrs


def _layer(node: Node, matcher: Matcher) -> int | None:
    """Layer number from the names of the cache inputs."""
    key, value = node.inputs[4:6]
    return layer_of(matcher, key=key, value=value) if _has_scale(node) else None


def _beside_sinks(node: Node, heads: int, matcher: Matcher) -> tuple[str, list[str]]:
    """What a node attends to, less what goes to sinks; and the name of those, if there are any.

    The scores are given out before they are bounded, so that bounded ones have another sum.
    """
    attended, scores = node.outputs[0], node.outputs[-1]
    may_have = len(node.outputs) == 4 and not node.attrs["softcap"]
    for product in matcher.consumers.get(attended, []) if may_have else ():
        match = matcher.match(product.outputs[0], _SUNK)
        if match is None or (match["attended"], match["scores"], match["mask"]) != (
            attended,
            scores,
            node.inputs[3],
        ):
            continue
        graph, name = matcher.graph, f"{match['sinks']}/heads"
        sinks = graph.array(match["sinks"])
        if sinks.shape != (1, heads, 1, 1):
            raise BundleError(
                f"node '{product.name}' has sinks of shape {sinks.shape} for {heads} heads: "
                f"{ALTERED}"
            )
        graph.add_constant(name, sinks.reshape(-1))
        return product.outputs[0], [name]
    return attended, []


def _join(attended: str, width: int, matcher: Matcher) -> Node | None:
    """The Reshape that joins the heads of a value to rows of a width."""
    for transpose in matcher.consumers.get(attended, []):
        for reshape in matcher.consumers.get(transpose.outputs[0], []):
            match = matcher.match(reshape.outputs[0], _JOINED)
            if match is None or match["attended"] != attended:
                continue
            if _shape(match, matcher) == [0, 0, width]:
                return reshape
    return None


@dataclass(frozen=True, slots=True)
class _Heads:
    """One input of attention.

    Attributes:
        rows: name of the value that it is made of.
        count: heads.
        size: elements of a head.
        nodes: norm and rotary of the heads, renamed to work on rows.
        is_turned: whether there is a rotary among them.
    """

    rows: str
    count: int
    size: int
    nodes: list[Node]
    is_turned: bool


def _heads(value: str, matcher: Matcher) -> _Heads | None:
    """Follows one input of attention back to its rows; None when the form differs."""
    nodes: list[Node] = []
    last = matcher.producers.get(value)
    if last is not None and last.op == "rms_norm":  # after the rotary; before it there is none then
        nodes.append(last)
        value = last.inputs[0]
    rotary = matcher.producers.get(value)
    rotated = rotary.attrs["head_dim"] if rotary is not None and rotary.op == "rotary" else 0
    if rotary is not None and rotated:
        nodes.append(rotary)
        value = rotary.inputs[0]
    match = matcher.match(value, _HEADS)
    if match is None or (nodes and not rotated):
        return None
    value = match["split"]
    norm = matcher.producers.get(value)
    if norm is not None and norm.op == "rms_norm" and len(nodes) < _MOST_OF_HEADS:
        nodes.append(norm)
        value = norm.inputs[0]
    split = matcher.match(value, _SPLIT)
    if split is None:
        return None
    shape = _shape(split, matcher)
    if len(shape) != 4 or shape[:2] != [0, 0] or min(shape[2:]) < 1:
        return None
    if rotated not in (0, shape[3]):
        raise BundleError(
            f"heads of {shape[3]} elements are turned by angles for {rotated} in "
            f"'{nodes[0].name}': {ALTERED}"
        )
    flat, renamed = _on_rows(split["flat"], nodes[::-1])
    return _Heads(flat, shape[2], shape[3], renamed, bool(rotated))


def _shape(match: Match, matcher: Matcher) -> list[int]:
    shape: list[int] = matcher.graph.array(match["shape"]).reshape(-1).tolist()
    return shape


def _on_rows(flat: str, nodes: list[Node]) -> tuple[str, list[Node]]:
    """Chains the nodes after ``flat`` under new names."""
    renamed = []
    for node in nodes:
        output = f"{node.outputs[0]}/rows"
        inputs = (flat, *node.inputs[1:])
        renamed.append(node.replace(name=f"{node.name}/rows", inputs=inputs, outputs=(output,)))
        flat = output
    return flat, renamed


# From the operator specifications of ONNX (opset 23).
READS: Mapping[str, Rules] = {
    "Attention": {
        "scale": Read(float),
        "is_causal": Read(int, 0),
        "softcap": Read(float, 0.0),  # of scores before the mask
        "softmax_precision": 1,  # float32
        "qk_matmul_output_mode": 0,
    },
    "Cast": {"to": Read(int, needed=True), "saturate": 1},
    "ReduceLogSumExp": {"keepdims": Read(int, 1), "noop_with_empty_axes": 0},
    "Reshape": {"allowzero": 0},
    "Shape": {"start": Read(int, 0), "end": Read(int)},
    "Transpose": {"perm": Read(tuple)},
}
PASS = Pass(30, fuse_attention, READS)
