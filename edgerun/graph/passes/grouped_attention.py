"""GroupQueryAttention, which rotates and counts positions by itself, becomes ``attention``.

Its tables of cosines and sines are those of some frequencies, which ``rotary`` is given instead.
Nodes that do not rotate have tables, too, which tell the size of a head.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgerun.graph.attributes import Read, Rules
from edgerun.graph.ir import Graph, Node
from edgerun.graph.mapped_file import ArrayReader
from edgerun.graph.match import Const, Matcher, Num, Op, Var
from edgerun.graph.passes.base import Pass
from edgerun.graph.passes.states import check_states, layer_of
from edgerun.ops.base import POSITIONS

GROUPED = "com.microsoft.GroupQueryAttention"
INT32 = 6  # onnx.TensorProto
FARTHEST = 1 << 12  # position at which angles tell frequencies apart to the last bit or nearly so
SAMPLES = 1024  # positions whose angles decide on the last bit
PIECE = 4096  # positions looked at together: a table may be as large as the file
# Its inputs; positions and a bias are not given.
Q, K, V, PAST_KEY, PAST_VALUE, LAST, TOTAL, COS, SIN, POSITION_IDS, BIAS, SINKS = range(12)
_ROWS = Op("ReduceSum", Var("mask"), Num(1), keepdims=0)
_LAST = Op("Cast", Op("Sub", _ROWS, Num(1)), to=INT32)
_TOTAL = Op("Cast", Op("Squeeze", Op("Shape", Var("mask"), start=1, end=2), Num(0)), to=INT32)
_NORMED = Op("Reshape", Var("normed"), Const("joined"))
_SPLIT = Op("Reshape", Var("flat"), Const("split"))
_Frequencies = tuple[NDArray[np.float32], float]


def fuse_grouped_attention(graph: Graph) -> Graph:
    """Rewrites every GroupQueryAttention over a whole cache."""
    if not any(node.op == GROUPED for node in graph.nodes):
        return graph
    matcher = Matcher(graph)
    tables: dict[tuple[str, str], _Frequencies | None] = {}
    return graph.with_nodes(
        new
        for node in graph.nodes
        for new in (_rewrite(node, matcher, tables) if node.op == GROUPED else [node])
    )


def _rewrite(
    node: Node, matcher: Matcher, tables: dict[tuple[str, str], _Frequencies | None]
) -> list[Node]:
    attrs = node.attrs
    inputs = [*node.inputs, *[""] * (SINKS + 1)][: SINKS + 1]
    layer = layer_of(matcher, key=inputs[PAST_KEY], value=inputs[PAST_VALUE])
    if layer is None or not _has_form(node, inputs, matcher):
        return [node]
    pair = inputs[COS], inputs[SIN]
    table = _table(pair, matcher.graph, tables)
    if table is None:
        return [node]
    key, value = (*node.outputs[1:3], "", "")[:2]
    check_states(matcher, node, layer, key=key, value=value)
    head_dim = 2 * len(table[0])
    rotation = {"head_dim": head_dim, "factor": table[1]}
    nodes, values = [], []
    for place, heads in ((Q, attrs["num_heads"]), (K, attrs["kv_num_heads"])):
        rows, norms = _rows(inputs[place], heads, head_dim, matcher)
        nodes += norms
        if attrs["do_rotary"]:
            turned = f"{node.name}/{'qk'[place]}"
            angles = (rows, POSITIONS, f"{pair[0]}/frequencies")
            nodes.append(Node("rotary", turned, angles, (turned,), rotation))
            rows = turned
        values.append(rows)
    of_values, norms = _rows(inputs[V], attrs["kv_num_heads"], head_dim, matcher)
    nodes += norms
    window = attrs["local_window_size"]
    attributes = {
        "layer": layer,
        "num_heads": attrs["num_heads"],
        "num_kv_heads": attrs["kv_num_heads"],
        "head_dim": head_dim,
        "scale": attrs["scale"],
        "window": 0 if window == -1 else window,
        "softcap": attrs["softcap"],
    }
    sinks = [inputs[SINKS]] if inputs[SINKS] else []
    operands = (*values, of_values, *sinks)
    return [*nodes, Node("attention", node.name, operands, node.outputs[:1], attributes)]


def _has_form(node: Node, inputs: list[str], matcher: Matcher) -> bool:
    """Whether it rotates, and counts positions by the mask, as the exporter's do.

    A scale of 0 stands for none, and in a window of 0 nothing is seen (onnxruntime's operator).
    """
    constants = matcher.graph.constants
    counts = matcher.match(inputs[LAST], _LAST), matcher.match(inputs[TOTAL], _TOTAL)
    return (
        bool(node.attrs.get("scale"))
        and node.attrs["local_window_size"] != 0
        and node.attrs["do_rotary"] in (0, 1)
        and not any((inputs[POSITION_IDS], inputs[BIAS], *node.inputs[SINKS + 1 :]))
        and all(count is not None and count["mask"] == "attention_mask" for count in counts)
        and all(inputs[place] in constants for place in (COS, SIN))
        and (not inputs[SINKS] or inputs[SINKS] in constants)
    )


def _table(
    pair: tuple[str, str], graph: Graph, tables: dict[tuple[str, str], _Frequencies | None]
) -> _Frequencies | None:
    """What a pair of tables was made of; looks at each once, and adds the frequencies."""
    if pair not in tables:
        tables[pair] = table = frequencies(graph.array(pair[0]), graph.array(pair[1]))
        if table is not None:
            graph.add_constant(f"{pair[0]}/frequencies", table[0])
    return tables[pair]


def _rows(value: str, heads: int, head_dim: int, matcher: Matcher) -> tuple[str, list[Node]]:
    """The rows that an input is made of, and a norm of its heads if it has one."""
    match = matcher.match(value, _NORMED)
    norm = matcher.producers.get(match["normed"]) if match is not None else None
    split = matcher.match(norm.inputs[0], _SPLIT) if norm is not None else None
    if match is None or norm is None or split is None or norm.op != "rms_norm":
        return value, []
    shapes = [
        matcher.graph.array(name).reshape(-1).tolist() for name in (split["split"], match["joined"])
    ]
    if shapes != [[0, 0, heads, head_dim], [0, 0, heads * head_dim]]:
        return value, []
    rows = f"{norm.outputs[0]}/rows"
    operands = (split["flat"], *norm.inputs[1:])
    return rows, [norm.replace(name=f"{norm.name}/rows", inputs=operands, outputs=(rows,))]


def frequencies(cos: NDArray[Any], sin: NDArray[Any]) -> _Frequencies | None:
    """What tables ``[positions, half]`` were made of; None if of no frequencies.

    Angles double from one power of two to the next, so each tells half of what was left open.

    Returns:
        radians a position, float32 ``[half]``, and what cosines and sines were multiplied with.
    """
    both = cos.dtype == sin.dtype == np.float32 and cos.ndim == 2 and cos.shape == sin.shape
    if not both or len(cos) < 2 or not cos.shape[1] or not 0 < cos[0, 0] < np.inf:
        return None
    factor, position = cos[0, 0], 1
    angles = np.arctan2(sin[1].astype(np.float64), cos[1])
    while 2 * position < min(len(cos), FARTHEST):
        position, angles = 2 * position, 2 * angles
        measured = np.arctan2(sin[position].astype(np.float64), cos[position])
        angles += np.remainder(measured - angles + np.pi, 2 * np.pi) - np.pi
    if not np.isfinite(angles).all():
        return None
    radians = (angles / position).astype(np.float32)
    near = np.stack([np.nextafter(radians, bound) for bound in (-np.inf, radians, np.inf)])
    some = np.linspace(0, len(cos) - 1, SAMPLES).astype(np.int64)
    errors = [_errors(each, factor, some, cos[some], sin[some]).sum(axis=0) for each in near]
    radians = np.take_along_axis(near, np.argmin(errors, axis=0)[None], axis=0)[0]
    return (radians, float(factor)) if _are_close(radians, factor, cos, sin) else None


def _are_close(
    radians: NDArray[np.float32],
    factor: np.float32,
    cos: NDArray[np.float32],
    sin: NDArray[np.float32],
) -> bool:
    """Whether tables are those of some frequencies at all positions."""
    readers = ArrayReader(), ArrayReader()
    for first in range(0, len(cos), PIECE):
        positions = np.arange(first, min(first + PIECE, len(cos)))
        tables = (
            reader.read(table[first : first + PIECE])
            for reader, table in zip(readers, (cos, sin), strict=True)
        )
        if not _errors(radians, factor, positions, *tables).max() <= 1e-5 * factor:  # or no number
            return False
    return True


def _errors(
    radians: NDArray[np.float32],
    factor: np.float32,
    positions: NDArray[np.int64],
    cos: NDArray[np.float32],
    sin: NDArray[np.float32],
) -> NDArray[np.float32]:
    """How far rows of tables are from those of some frequencies at their positions."""
    angles = positions.astype(np.float32)[:, None] * radians
    pairs = ((np.cos(angles), cos), (np.sin(angles), sin))
    apart, other = (np.abs(exact * factor - rows) for exact, rows in pairs)
    errors: NDArray[np.float32] = np.maximum(apart, other)
    return errors


# From the operator specifications of ONNX (opset 23) and of onnxruntime.
READS: Mapping[str, Rules] = {
    GROUPED: {
        "num_heads": Read(int, needed=True),
        "kv_num_heads": Read(int, needed=True),
        "scale": Read(float),
        "do_rotary": Read(int, 0),
        "rotary_interleaved": 0,
        "local_window_size": Read(int, -1),
        "softcap": Read(float, 0.0),
    },
    "Cast": {"to": Read(int, needed=True), "saturate": 1},
    "ReduceSum": {"keepdims": Read(int, 1), "noop_with_empty_axes": 0},
    "Reshape": {"allowzero": 0},
    "Shape": {"start": Read(int, 0), "end": Read(int)},
}
PASS = Pass(29, fuse_grouped_attention, READS)
