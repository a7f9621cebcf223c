"""The standard Attention op with its mask, heads and cache becomes ``attention`` on rows.

Rows ``[tokens, heads * head_dim]`` need no Reshape and Transpose: the ones around attention
disappear here.
"""

from __future__ import annotations

import re
from dataclasses import replace

from edgerun.graph.ir import Graph, Node
from edgerun.graph.match import Const, Match, Matcher, Num, Op, Var

_TOTAL = Op("Shape", Var("attention_mask"), bind="total")
_PAST = Op("Sub", _TOTAL, Op("Shape", Var("input_ids"), bind="sequence"))
_COLUMNS = Op("Range", Num(0), Op("Squeeze", _TOTAL, Num(0)), Num(1))
_ROWS = Op(
    "Unsqueeze",
    Op("Range", Op("Squeeze", _PAST, Num(0)), Op("Squeeze", _TOTAL, Num(0)), Num(1)),
    Num(1),
)
_CAUSAL = Op("LessOrEqual", _COLUMNS, _ROWS)
_RECENT = Op("Greater", _COLUMNS, Op("Sub", _ROWS, Const("window")))
_PADDING = Op("Cast", Op("Unsqueeze", Var("attention_mask"), Num((1, 2))))
_FULL_MASK = Op("And", _CAUSAL, _PADDING)
_WINDOW_MASK = Op("And", Op("And", _CAUSAL, _RECENT), _PADDING)
_HEADS = Op("Transpose", Var("split"), bind="transpose")
_SPLIT = Op("Reshape", Var("flat"), Const("shape"))
_JOINED = Op("Reshape", Op("Transpose", Var("attended"), bind="transpose"), Const("shape"))
_PAST_NAME = re.compile(r"past_key_values\.(\d+)\.(key|value)")


def fuse_attention(graph: Graph) -> Graph:
    """Rewrites every Attention node whose surroundings have the exporter's form."""
    matcher = Matcher(graph)
    rewritten: dict[str, list[Node]] = {}
    masks = {}
    for node in graph.nodes:
        if node.op != "Attention":
            continue
        mask = node.inputs[3]
        if mask not in masks:
            masks[mask] = _window(mask, matcher)
        window = masks[mask]
        if window is not None:
            rewritten.update(_rewrite(node, matcher, window))
    nodes = [new for node in graph.nodes for new in rewritten.get(node.name, [node])]
    return graph.with_nodes(nodes)


def _window(mask: str, matcher: Matcher) -> int | None:
    """Window of a causal mask (0: unlimited), or None when the mask is something else."""
    found = matcher.match(mask, _FULL_MASK)
    if found is not None:
        return 0 if _reads_inputs(found) else None
    found = matcher.match(mask, _WINDOW_MASK)
    if found is None or not _reads_inputs(found):
        return None
    return int(matcher.graph.array(found["window"]))


def _reads_inputs(found: Match) -> bool:
    spans = [(node.attrs.get("start"), node.attrs.get("end")) for node in found.nodes.values()]
    names = (found["attention_mask"], found["input_ids"])
    return names == ("attention_mask", "input_ids") and spans == [(1, 2), (1, 2)]


def _rewrite(node: Node, matcher: Matcher, window: int) -> dict[str, list[Node]]:
    """Replacement nodes by the name of the node they replace; empty when the form differs."""
    layer = _layer(node)
    joined = _join(node, matcher)
    parts = [_heads(name, matcher) for name in node.inputs[:3]]
    if layer is None or joined is None or any(part is None for part in parts):
        return {}
    (q, heads, dim, q_nodes), (k, kv_heads, _, k_nodes), (v, _, _, _) = (
        part for part in parts if part is not None
    )
    attention = Node(
        op="attention",
        name=node.name,
        inputs=(q, k, v),
        outputs=joined.outputs,
        attrs={
            "layer": layer,
            "num_heads": heads,
            "num_kv_heads": kv_heads,
            "head_dim": dim,
            "scale": float(node.attrs["scale"]),
            "window": window,
        },
    )
    return {node.name: [*q_nodes, *k_nodes, attention], joined.name: []}


def _layer(node: Node) -> int | None:
    """Layer number from the names of the cache inputs."""
    if len(node.inputs) != 6 or node.attrs.get("is_causal", 0) or "scale" not in node.attrs:
        return None
    found = [_PAST_NAME.fullmatch(name) for name in node.inputs[4:6]]
    if found[0] is None or found[1] is None or found[0][1] != found[1][1]:
        return None
    return int(found[0][1])


def _join(node: Node, matcher: Matcher) -> Node | None:
    """The Reshape that joins the heads of this node's output."""
    for transpose in matcher.consumers.get(node.outputs[0], []):
        for reshape in matcher.consumers.get(transpose.outputs[0], []):
            found = matcher.match(reshape.outputs[0], _JOINED)
            if found is not None and found["attended"] == node.outputs[0]:
                return reshape
    return None


def _heads(value: str, matcher: Matcher) -> tuple[str, int, int, list[Node]] | None:
    """Follows one input of attention back to its rows.

    Returns:
        the rows' name, number of heads, head_dim, and the per-head nodes (norm, rotary)
        renamed to work on rows.
    """
    nodes: list[Node] = []
    rotary = matcher.producers.get(value)
    if rotary is not None and rotary.op == "rotary":
        nodes.append(rotary)
        value = rotary.inputs[0]
    found = matcher.match(value, _HEADS)
    if found is None or tuple(found.nodes["transpose"].attrs.get("perm", ())) != (0, 2, 1, 3):
        return None
    value = found["split"]
    norm = matcher.producers.get(value)
    if norm is not None and norm.op == "rms_norm":
        nodes.append(norm)
        value = norm.inputs[0]
    split = matcher.match(value, _SPLIT)
    if split is None:
        return None
    shape = matcher.graph.array(split["shape"]).reshape(-1).tolist()
    if len(shape) != 4:
        return None
    flat, renamed = _on_rows(split["flat"], nodes[::-1])
    return flat, shape[2], shape[3], renamed


def _on_rows(flat: str, nodes: list[Node]) -> tuple[str, list[Node]]:
    """Chains the nodes after ``flat`` under new names."""
    renamed = []
    for node in nodes:
        output = f"{node.outputs[0]}/rows"
        inputs = (flat, *node.inputs[1:])
        renamed.append(replace(node, name=f"{node.name}/rows", inputs=inputs, outputs=(output,)))
        flat = output
    return flat, renamed
