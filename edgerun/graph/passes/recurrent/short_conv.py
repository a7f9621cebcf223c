"""A gated convolution with what it remembers becomes ``short_conv`` on rows.

Padding, which the file multiplies by zero, does not exist here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgerun.errors import BundleError
from edgerun.graph.attributes import Read, Rules
from edgerun.graph.ir import Graph, Node
from edgerun.graph.match import Const, Matcher, Num, Op, Var
from edgerun.graph.passes.base import Pass
from edgerun.graph.passes.states import check_states, layer_of, present_name, refused
from edgerun.graph.shapes import ALTERED

FLOAT = 1  # onnx.TensorProto
CHANNELS_FIRST = (0, 2, 1)  # and back
_PAST = Op(
    "Sub",
    Op("Shape", Var("attention_mask"), start=1, end=2),
    Op("Shape", Var("input_ids"), start=1, end=2),
)
_NEW = Op("Slice", Var("attention_mask"), _PAST, Const("end"), Num(1))
TOKENS = Op("Unsqueeze", Op("Cast", _NEW, to=FLOAT), Num(1))
_GATED = Op("Transpose", Op("Mul", Var("gate"), Var("value")), perm=CHANNELS_FIRST)
_SEEN = Op("Concat", Var("past"), Op("Mul", _GATED, TOKENS), axis=2)
_MIXED = Op("Transpose", Op("Conv", _SEEN, Const("taps")), perm=CHANNELS_FIRST)
_FORM = Op("Mul", Var("out"), _MIXED)
_REMEMBERED = Op("Slice", Var("seen"), Const("begin"), Const("end"), Num(2))
LAST = 2**31  # what a Slice that ends with the tokens ends with, or more


def fuse_short_convs(graph: Graph) -> Graph:
    """Rewrites gated convolutions over the tokens that an input remembers and those of a call."""
    if not any(node.op == "Conv" for node in graph.nodes):
        return graph
    matcher = Matcher(graph)
    return graph.with_nodes([_rewrite(node, matcher) for node in graph.nodes])


def _rewrite(node: Node, matcher: Matcher) -> Node:
    match = matcher.match(node.outputs[0], _FORM) if node.op == "Mul" else None
    if match is None:
        return node
    layer, end = layer_of(matcher, conv=match["past"]), matcher.number(match["end"])
    inputs = (match["attention_mask"], match["input_ids"])
    if layer is None or inputs != ("attention_mask", "input_ids") or end is None or end < LAST:
        return node
    conv = matcher.producers[matcher.producers[node.inputs[1]].inputs[0]]
    taps, name = stored_taps(conv, matcher.graph), f"{match['taps']}/taps"
    check_remembered(layer, conv, len(taps), matcher)
    matcher.graph.add_constant(name, np.ascontiguousarray(taps).reshape(-1))
    return node.replace(
        op="short_conv",
        inputs=(match["gate"], match["value"], match["out"], name),
        attrs={"layer": layer, "width": taps.shape[1], "count": len(taps)},
    )


def check_remembered(layer: int, conv: Node, count: int, matcher: Matcher) -> None:
    """Checks that a file gives back the last inputs of a convolution of ``count`` tokens.

    Raises:
        UnsupportedError: it gives back something else.
    """
    present = present_name(layer, "conv")
    match = matcher.match(present, _REMEMBERED)
    if match is None or match["seen"] != conv.inputs[0]:
        raise refused(conv, present)
    begin, end = (matcher.number(match[name]) for name in ("begin", "end"))
    if begin != 1 - count or end is None or end < LAST:
        raise refused(conv, present)
    check_states(matcher, conv, layer, conv=present)


def stored_taps(conv: Node, graph: Graph) -> NDArray[Any]:
    """The weights of a convolution of each value by itself, ``[count, width]``.

    Raises:
        BundleError: it is another kind of convolution.
    """
    stored, width = graph.array(conv.inputs[1]), conv.attrs["group"]
    taps = stored.shape[2:]
    is_whole = conv.attrs.get("kernel_shape", taps) == taps
    if stored.ndim != 3 or stored.shape[:2] != (width, 1) or not is_whole:
        raise BundleError(
            f"node '{conv.name}' convolves by weights of shape {stored.shape} in groups of "
            f"{width}; expected one group for each of its values: {ALTERED}"
        )
    return stored[:, 0].T


# From the operator specifications of ONNX (opset 23).
READS: Mapping[str, Rules] = {
    "Cast": {"to": Read(int, needed=True), "saturate": 1},
    "Concat": {"axis": Read(int, needed=True)},
    "Conv": {
        "group": Read(int, 1),
        "kernel_shape": Read(tuple),
        "auto_pad": "NOTSET",
        "dilations": (1,),
        "pads": (0, 0),
        "strides": (1,),
    },
    "Shape": {"start": Read(int, 0), "end": Read(int)},
    "Transpose": {"perm": Read(tuple)},
}
PASS = Pass(65, fuse_short_convs, READS)
