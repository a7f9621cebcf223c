"""A state space, a convolution and a Scan over tokens, becomes ``state_space`` on rows.

Padding, which the file multiplies by zero, does not exist.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass

import numpy as np

from edgerun.activations.registry import ACTIVATIONS
from edgerun.errors import BundleError
from edgerun.graph.ir import Graph, Node
from edgerun.graph.match import Const, Match, Matcher, Num, Op, Pattern, PatternWriter, Var
from edgerun.graph.passes.base import Pass
from edgerun.graph.passes.recurrent.scans import (
    SCAN_READS,
    Token,
    check_given_back,
    check_width,
    scanned_layer,
    seen,
    short,
)
from edgerun.graph.passes.recurrent.short_conv import CHANNELS_FIRST, TOKENS, stored_taps
from edgerun.graph.shapes import ALTERED

_SCANNED = 4
_BIASED = Op("Mul", Op("Conv", seen("xbc"), Const("taps"), Const("bias")), TOKENS)
_MIXED = Op("Transpose", _BIASED, perm=CHANNELS_FIRST)
_ACTIVE = ACTIVATIONS["silu"].onnx(PatternWriter(), Var("mixed"))


def _part(number: int) -> Pattern:
    return Op("Split", Var("active"), Const("parts"), output=number, axis=-1)


def _shared(part: Pattern) -> Pattern:
    """Keys or queries of every head."""
    return Op("Gather", Op("Reshape", part, Const("keys")), Const("sharing"), axis=2)


_ROW = Op("Reshape", _part(0), Const("rows"))
_TIME = Op("Softplus", Op("Add", Var("step"), Const("offset")))
_DECAY = Op("Exp", Op("Mul", _TIME, Const("rate")))
_RESULT = Op(
    "Scan",
    Var("state"),
    Op("Unsqueeze", _shared(_part(1)), Num(4)),
    Op("Unsqueeze", _shared(_part(2)), Num(3)),
    Op("Mul", _ROW, Op("Unsqueeze", _TIME, Num((3, 4)))),
    Op("Unsqueeze", _DECAY, Num((3, 4))),
    output=1,
    num_scan_inputs=_SCANNED,
    scan_input_axes=(1,) * _SCANNED,
    scan_output_axes=(1,),
)
_SKIPPED = Op("Mul", _ROW, Op("Unsqueeze", Const("skip"), Num((1, 2))))
_FORM = Op("Reshape", Op("Add", _RESULT, _SKIPPED), Const("joined"))
# 0 to 4 are the state, key, query, input and decay.
_TOKEN = Token(
    (("Mul", (0, 4), {}), ("Mul", (1, 3), {}), ("Add", (5, 6), {}), ("MatMul", (2, 7), {})),
    inputs=1 + _SCANNED,
    outputs=(7, 8),
)
_VECTORS = ("rate", "offset", "skip")
_LISTS = ("rows", "keys", "joined", "parts", "sharing")


def fuse_state_spaces(graph: Graph) -> Graph:
    """Rewrites every Scan whose body and surroundings have the exporter's form."""
    if not any(node.op == "Scan" for node in graph.nodes):
        return graph
    matcher = Matcher(graph)
    return graph.with_nodes(_rewrite(node, matcher) for node in graph.nodes)


@dataclass(frozen=True, slots=True)
class _Form:
    """What the patterns found of one layer.

    Attributes:
        read: of the Scan and what is around it.
        mixed: of the convolution.
        scan: the loop.
        conv: the convolution.
    """

    read: Match
    mixed: Match
    scan: Node
    conv: Node


@dataclass(frozen=True, slots=True)
class _Sizes:
    heads: int
    groups: int
    head_dim: int
    state_dim: int

    @property
    def width(self) -> int:
        """Elements of all inputs, keys and queries."""
        return self.heads * self.head_dim + 2 * self.groups * self.state_dim


def _rewrite(node: Node, matcher: Matcher) -> Node:
    form = _form(node, matcher) if node.op == "Reshape" else None
    if form is None:
        return node
    graph, scan = matcher.graph, form.scan
    layer = scanned_layer(scan, _TOKEN, form.mixed, form.read["state"], matcher)
    sizes, taps = _sizes(form, graph), stored_taps(form.conv, graph)
    check_given_back(layer, scan, form.conv, len(taps), matcher)
    check_width(form.conv, scan, taps.shape[1], sizes.width)
    name = f"{form.mixed['taps']}/taps"
    graph.add_constant(name, np.ascontiguousarray(taps).reshape(-1))
    inputs = (form.mixed["xbc"], form.read["step"], name, form.mixed["bias"])
    vectors = (form.read[each] for each in _VECTORS)
    attributes = {"layer": layer, **asdict(sizes), "count": len(taps)}
    return Node("state_space", scan.name, (*inputs, *vectors), node.outputs, attributes)


def _form(node: Node, matcher: Matcher) -> _Form | None:
    read = matcher.match(node.outputs[0], _FORM)
    active = read and matcher.match(read["active"], _ACTIVE)
    mixed = active and matcher.match(active["mixed"], _MIXED)
    if read is None or active is None or mixed is None:
        return None
    makers = matcher.producers
    scan = makers[makers[node.inputs[0]].inputs[0]]
    biased = makers[makers[active["mixed"]].inputs[0]]
    return _Form(read, mixed, scan, makers[biased.inputs[0]])


def _sizes(form: _Form, graph: Graph) -> _Sizes:
    """Heads, groups and their sizes, on which all constants agree.

    Raises:
        BundleError: they do not.
    """
    lists = [graph.array(form.read[name]).reshape(-1) for name in _LISTS]
    rows, keys, *_, sharing = (each.tolist() for each in lists)
    if all(each.dtype == np.int64 for each in lists) and (len(rows), len(keys)) == (5, 4):
        sizes = _Sizes(rows[2], keys[2], rows[4], keys[3])
        possible = min(asdict(sizes).values()) > 0 and len(sharing) == sizes.heads
        if possible and [each.tolist() for each in lists] == _constants(sizes):
            return sizes
    raise BundleError(
        f"node '{form.scan.name}' reads heads of inputs by {short(rows)} and of keys by "
        f"{short(keys)}, which do not fit what is around it: {ALTERED}"
    )


def _constants(sizes: _Sizes) -> list[list[int]]:
    inner, keys = sizes.heads * sizes.head_dim, sizes.groups * sizes.state_dim
    shared = max(sizes.heads // sizes.groups, 1)
    return [
        [0, 0, sizes.heads, 1, sizes.head_dim],
        [0, 0, sizes.groups, sizes.state_dim],
        [0, 0, inner],
        [inner, keys, keys],
        [head // shared for head in range(sizes.heads)],
    ]


PASS = Pass(41, fuse_state_spaces, SCAN_READS)
