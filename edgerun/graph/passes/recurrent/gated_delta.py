"""Linear attention, a convolution and a Scan over tokens, becomes ``gated_delta`` on rows.

The norm behind it works on heads, and on rows here. Padding, which the file multiplies by zero,
does not exist.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass

import numpy as np

from edgerun.activations.registry import ACTIVATIONS
from edgerun.errors import BundleError
from edgerun.graph.attributes import Read, Rules
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
from edgerun.graph.passes.recurrent.short_conv import CHANNELS_FIRST, stored_taps
from edgerun.graph.shapes import ALTERED

_SCANNED = 5
_MIXED = Op("Transpose", Op("Conv", seen("qkv"), Const("taps")), perm=CHANNELS_FIRST)
_ACTIVE = ACTIVATIONS["silu"].onnx(PatternWriter(), Var("mixed"))


def _part(number: int) -> Pattern:
    return Op("Split", Var("active"), Const("parts"), output=number, axis=-1)


def _heads(part: Pattern) -> Pattern:
    """Queries or keys of every value head, divided by their length."""
    heads = Op("Reshape", part, Const("keys"))
    squares = Op("ReduceSum", Op("Mul", heads, heads), Num(-1), keepdims=1)
    length = Op("Sqrt", Op("Add", squares, Const("epsilon")))
    return Op("Gather", Op("Div", heads, length), Const("sharing"), axis=2)


_DECAY = Op("Mul", Op("Softplus", Op("Add", Var("decay"), Const("offset"))), Const("rate"))
_OPENED = Op("Sigmoid", Var("write"))


def _form_of(strength: Pattern) -> Pattern:
    """All behind the convolution, by what says how much of a change is made."""
    result = Op(
        "Scan",
        Var("state"),
        Op("Unsqueeze", Op("Mul", _heads(_part(0)), Const("scale")), Num(3)),
        Op("Unsqueeze", _heads(_part(1)), Num(3)),
        Op("Reshape", _part(2), Const("values")),
        Op("Unsqueeze", Op("Exp", _DECAY), Num((3, 4))),
        Op("Unsqueeze", strength, Num((3, 4))),
        output=1,
        num_scan_inputs=_SCANNED,
        scan_input_axes=(1,) * _SCANNED,
        scan_output_axes=(1,),
    )
    normed = Op("rms_norm", Op("Reshape", result, Const("heads")), Const("norm"))
    return Op("Reshape", normed, Const("joined"))


_FORMS = (_form_of(_OPENED), _form_of(Op("Mul", _OPENED, Const("strength"))))
# 0 to 5 are the state, query, key, value, decay and strength.
_TOKEN = Token(
    (
        ("Mul", (0, 4), {}),
        ("MatMul", (2, 6), {}),
        ("Sub", (3, 7), {}),
        ("Mul", (8, 5), {}),
        ("Transpose", (2,), {"perm": (0, 1, 3, 2)}),
        ("Mul", (10, 9), {}),
        ("Add", (6, 11), {}),
        ("MatMul", (1, 12), {}),
    ),
    inputs=1 + _SCANNED,
    outputs=(12, 13),
)
_GATES, _VECTORS = ("decay", "write"), ("rate", "offset")
_LISTS = ("keys", "values", "heads", "joined", "parts", "sharing")


def fuse_gated_deltas(graph: Graph) -> Graph:
    """Rewrites every Scan whose body and surroundings have the exporter's form."""
    if not any(node.op == "Scan" for node in graph.nodes):
        return graph
    matcher = Matcher(graph)
    return graph.with_nodes(new for node in graph.nodes for new in _rewrite(node, matcher))


@dataclass(frozen=True, slots=True)
class _Form:
    """What the patterns found of one layer.

    Attributes:
        read: of the Scan and what is around it.
        mixed: of the convolution.
        norm: the norm of heads.
        scan: the loop.
        conv: the convolution.
    """

    read: Match
    mixed: Match
    norm: Node
    scan: Node
    conv: Node


@dataclass(frozen=True, slots=True)
class _Sizes:
    key_heads: int
    value_heads: int
    key_dim: int
    value_dim: int

    @property
    def width(self) -> int:
        """Elements of all queries, keys and values."""
        return 2 * self.key_heads * self.key_dim + self.value_heads * self.value_dim


def _rewrite(node: Node, matcher: Matcher) -> list[Node]:
    form = _form(node, matcher) if node.op == "Reshape" else None
    if form is None:
        return [node]
    graph, scan = matcher.graph, form.scan
    layer = scanned_layer(scan, _TOKEN, form.mixed, form.read["state"], matcher)
    sizes, taps = _sizes(form, graph), stored_taps(form.conv, graph)
    check_given_back(layer, scan, form.conv, len(taps), matcher)
    check_width(form.conv, scan, taps.shape[1], sizes.width)
    name, mixed = f"{form.mixed['taps']}/taps", f"{node.outputs[0]}/mixed"
    graph.add_constant(name, np.ascontiguousarray(taps).reshape(-1))
    gates, vectors = ([form.read[each] for each in names] for names in (_GATES, _VECTORS))
    attributes = {
        "layer": layer,
        **asdict(sizes),
        "count": len(taps),
        "epsilon": matcher.number(form.read["epsilon"]),
        "strength": _strength(form, matcher),
    }
    inputs = (form.mixed["qkv"], *gates, name, *vectors)
    return [
        Node("gated_delta", scan.name, inputs, (mixed,), attributes),
        form.norm.replace(inputs=(mixed, form.read["norm"]), outputs=node.outputs),
    ]


def _strength(form: _Form, matcher: Matcher) -> float | None:
    """What sigmoids are multiplied by; None, which no node may have, if that is no number."""
    if "strength" not in form.read.values:
        return 1.0
    return matcher.number(form.read["strength"])


def _form(node: Node, matcher: Matcher) -> _Form | None:
    matches = (matcher.match(node.outputs[0], form) for form in _FORMS)
    read = next(filter(None, matches), None)
    active = read and matcher.match(read["active"], _ACTIVE)
    mixed = active and matcher.match(active["mixed"], _MIXED)
    if read is None or active is None or mixed is None:
        return None
    makers = matcher.producers
    norm = makers[node.inputs[0]]
    scan = makers[makers[norm.inputs[0]].inputs[0]]
    return _Form(read, mixed, norm, scan, makers[makers[active["mixed"]].inputs[0]])


def _sizes(form: _Form, graph: Graph) -> _Sizes:
    """Heads and their sizes, on which all constants agree.

    Raises:
        BundleError: they do not.
    """
    lists = [graph.array(form.read[name]).reshape(-1) for name in _LISTS]
    keys, values, *_, sharing = (each.tolist() for each in lists)
    if all(each.dtype == np.int64 for each in lists) and (len(keys), len(values)) == (4, 5):
        sizes = _Sizes(keys[2], values[2], keys[3], values[4])
        possible = min(asdict(sizes).values()) > 0 and len(sharing) == sizes.value_heads
        if possible and [each.tolist() for each in lists] == _constants(sizes):
            _check_numbers(form, graph, sizes)
            return sizes
    raise BundleError(
        f"node '{form.scan.name}' reads heads of queries and keys by {short(keys)} and of values "
        f"by {short(values)}, which do not fit what is around it: {ALTERED}"
    )


def _constants(sizes: _Sizes) -> list[list[int]]:
    keys, values = sizes.key_heads * sizes.key_dim, sizes.value_heads * sizes.value_dim
    shared = sizes.value_heads // sizes.key_heads
    return [
        [0, 0, sizes.key_heads, sizes.key_dim],
        [0, 0, sizes.value_heads, 1, sizes.value_dim],
        [0, 0, sizes.value_heads, sizes.value_dim],
        [0, 0, values],
        [keys, keys, values],
        [head // max(shared, 1) for head in range(sizes.value_heads)],
    ]


def _check_numbers(form: _Form, graph: Graph, sizes: _Sizes) -> None:
    """Checks that queries are scaled as they should be, and that there is a norm of heads.

    Raises:
        BundleError: it is not so.
    """
    scale, expected = graph.array(form.read["scale"]), np.float32(sizes.key_dim**-0.5)
    if scale.size != 1 or scale.reshape(-1)[0] != expected:
        raise BundleError(
            f"node '{form.scan.name}' reads by queries times {short(scale.reshape(-1).tolist())}; "
            f"expected {expected:g}: {ALTERED}"
        )
    norm = graph.array(form.read["norm"])
    if norm.shape != (sizes.value_dim,):
        raise BundleError(
            f"node '{form.norm.name}' has a weight of shape {norm.shape} for heads of "
            f"{sizes.value_dim}: {ALTERED}"
        )


READS: Mapping[str, Rules] = {
    **SCAN_READS,
    "ReduceSum": {"keepdims": Read(int, 1), "noop_with_empty_axes": 0},
}
PASS = Pass(40, fuse_gated_deltas, READS)
