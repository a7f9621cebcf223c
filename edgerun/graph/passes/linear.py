"""MatMulNBits, and MatMul with a constant, become ``linear``.

BitNet's activation rounding, written out before the product, becomes an attribute of it; sums of
blocks of the input times a matrix, added after it, become offsets of the weight's blocks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, TypeAlias

import numpy as np

from edgerun.errors import BundleError
from edgerun.formats.base import PackedWeight
from edgerun.formats.stack import Matrix
from edgerun.graph.attributes import Read, Rules
from edgerun.graph.ir import Graph, Node
from edgerun.graph.match import Const, Matcher, Num, Op, Var
from edgerun.graph.passes.base import Pass
from edgerun.ops.linear import Activations

FLOAT = 1  # onnx.TensorProto
_SCALE = Op(
    "Div",
    Num(127),
    Op(
        "Clip",
        Op("ReduceMax", Op("Abs", Var("x")), Num(-1), keepdims=1),
        Num(np.float32(1e-5).item()),
    ),
)
_ROUNDED = Op(
    "Div",
    Op("Clip", Op("Round", Op("Mul", Var("x"), _SCALE)), Num(-128), Num(127)),
    _SCALE,
)
_TIED = Op("MatMul", Var("x"), Op("Transpose", Const("table"), perm=(1, 0)))
# What is added to every weight of a block is multiplied by the sum of the block's inputs.
_OFFSET = Op(
    "MatMul",
    Op("ReduceSum", Op("Reshape", Var("x"), Const("shape")), Num(-1), keepdims=0),
    Op("Cast", Const("offsets"), to=FLOAT),
)
_DENSE = Op("MatMul", Var("x"), Const("weight"))
_BIASED, _TIED_BIASED = (Op("Add", product, Const("bias")) for product in (_DENSE, _TIED))
# By the name of a constant that was made here, what it was made from.
Derived: TypeAlias = dict[str, tuple[Any, ...]]
FORMAT_KEY = "edgerun.format"
FORMATS = {2: "int2", 4: "int4", 8: "int8"}


def fuse_linear(graph: Graph) -> Graph:
    """Rewrites products with constant matrices."""
    matcher = Matcher(graph)
    derived: Derived = {}
    rewrites: dict[str, Callable[[Node, Matcher, Derived], Node | None]] = {
        "com.microsoft.MatMulNBits": _quantised,
        "MatMul": _dense,
        "Add": _added,
    }
    nodes = []
    for node in graph.nodes:
        rewrite = rewrites.get(node.op)
        nodes.append((rewrite and rewrite(node, matcher, derived)) or node)
    return graph.with_nodes(nodes)


def _quantised(node: Node, matcher: Matcher, derived: Derived, offsets: str = "") -> Node | None:
    graph = matcher.graph
    inputs = [*node.inputs, "", "", ""]
    if (
        inputs[4]
        or any(inputs[6:])
        or any(name and name not in graph.constants for name in inputs[1:])
    ):
        return None
    name = f"{inputs[1]}/weight" + (f"/{offsets}" if offsets else "")
    sizes = (node.attrs[name] for name in ("N", "K", "bits", "block_size"))
    origin = (*inputs[1:4], *sizes, node.metadata.get(FORMAT_KEY))
    if derived.get(name) != origin:
        packed = _packed(node, graph)
        if offsets:
            packed = replace(packed, offsets=graph.array(offsets))
        graph.add_constant(name, packed)
        derived[name] = origin
    x, activations = _activations(inputs[0], node, matcher)
    bias = (inputs[5],) if inputs[5] else ()
    return node.replace(op="linear", inputs=(x, name, *bias), attrs={"activations": activations})


def _added(node: Node, matcher: Matcher, derived: Derived) -> Node | None:
    product = matcher.producers.get(node.inputs[0])
    if product is None or product.op != "com.microsoft.MatMulNBits":
        return _biased(node, matcher, derived)
    match = matcher.match(node.inputs[1], _OFFSET)
    if match is None or match["x"] != product.inputs[0] or any(product.inputs[3:4]):
        return None
    block = _block(product)
    shape = (0, 0, -(-int(product.attrs["K"]) // block), block)
    if not np.array_equal(matcher.graph.array(match["shape"]), shape):
        return None
    linear = _quantised(product, matcher, derived, match["offsets"])
    return linear and linear.replace(outputs=node.outputs)


def _activations(value: str, node: Node, matcher: Matcher) -> tuple[str, Activations]:
    match = matcher.match(value, _ROUNDED)
    if match is not None:
        return match["x"], "int8_row"
    return value, "int8_block" if node.attrs.get("accuracy_level") == 4 else "float"


def stored_matrix(node: Node, graph: Graph) -> Matrix:
    """The matrix ``[N, K]`` by which a MatMulNBits or a MatMul of the file multiplies.

    Raises:
        BundleError: its codes and scales are not of the sizes that the node states.
    """
    return graph.array(node.inputs[1]).T if node.op == "MatMul" else _packed(node, graph)


def _block(node: Node) -> int:
    """How many weights share a scale.

    Raises:
        BundleError: none do.
    """
    block = int(node.attrs["block_size"])
    if block <= 0:
        raise BundleError(
            f"node '{node.name}' says block_size={block}; at least one weight has a scale, so the "
            "file is damaged"
        )
    return block


def _packed(node: Node, graph: Graph) -> PackedWeight:
    inputs = [*node.inputs, ""]
    n, k, bits = (int(node.attrs[name]) for name in ("N", "K", "bits"))
    block = _block(node)
    codes, scales = graph.array(inputs[1]), graph.array(inputs[2])
    blocks = -(-k // block)
    fits = (
        bits in FORMATS
        and codes.shape == (n, blocks, block * bits // 8)
        and scales.size == n * blocks
        and scales.dtype == np.float32
    )
    if not fits:
        raise BundleError(
            f"node '{node.name}' says N={n} K={k} bits={bits} block_size={block}, but its codes "
            f"have shape {codes.shape} and its {scales.size} scales type {scales.dtype}"
        )
    zeros = graph.array(inputs[3]) if inputs[3] else None
    if zeros is not None and zeros.size == n * -(-blocks * bits // 8):
        zeros = zeros.reshape(n, -1)
    name = node.metadata.get(FORMAT_KEY, FORMATS[bits])
    return PackedWeight(name, (n, k), block, codes, scales.reshape(n, blocks), zeros)


def _dense(node: Node, matcher: Matcher, derived: Derived) -> Node | None:
    tied = matcher.match(node.outputs[0], _TIED)
    if tied is not None:
        return _float_linear(node, tied["x"], tied["table"], matcher)
    match = matcher.match(node.outputs[0], _DENSE)
    if match is None or matcher.graph.array(match["weight"]).ndim != 2:
        return None
    return _float_linear(
        node, match["x"], _turned(matcher.graph, match["weight"], derived), matcher
    )


def _biased(node: Node, matcher: Matcher, derived: Derived) -> Node | None:
    tied = matcher.match(node.outputs[0], _TIED_BIASED)
    match = tied or matcher.match(node.outputs[0], _BIASED)
    if match is None or matcher.graph.array(match["bias"]).ndim != 1:
        return None
    name = tied["table"] if tied else _turned(matcher.graph, match["weight"], derived)
    return _float_linear(node, match["x"], name, matcher, match["bias"])


def _float_linear(node: Node, x: str, weight: str, matcher: Matcher, *bias: str) -> Node:
    x, activations = _activations(x, node, matcher)
    inputs = (x, weight, *bias)
    return node.replace(op="linear", inputs=inputs, attrs={"activations": activations})


def _turned(graph: Graph, weight: str, derived: Derived) -> str:
    """Name of the ``[N, K]`` view of a stored ``[K, N]`` matrix."""
    name = f"{weight}/turned"
    if name not in derived:
        graph.add_constant(name, graph.array(weight).T)
        derived[name] = ()
    return name


# From the operator specifications of ONNX (opset 23) and of onnxruntime.
READS: Mapping[str, Rules] = {
    "Cast": {"to": Read(int, needed=True), "saturate": 1},
    "ReduceMax": {"keepdims": Read(int, 1), "noop_with_empty_axes": 0},
    "ReduceSum": {"keepdims": Read(int, 1), "noop_with_empty_axes": 0},
    "Reshape": {"allowzero": 0},
    "Transpose": {"perm": Read(tuple)},
    "com.microsoft.MatMulNBits": {
        "K": Read(int, needed=True),
        "N": Read(int, needed=True),
        "bits": Read(int, needed=True),
        "block_size": Read(int, needed=True),
        "accuracy_level": Read(int, 0),
    },
}
PASS = Pass(50, fuse_linear, READS)
