"""The recurring pieces of the portable graph; docs/bundle.md shows the exact forms.

The runtime recognises these forms and fuses them, so a change here is a change of the bundle
format.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np
import onnx

from edgerun.activations.registry import ACTIVATIONS
from edgerun_export.architectures import Rope
from edgerun_export.graph.onnx_graph import OnnxGraph, node_path, numbered

BOOL, FLOAT = onnx.TensorProto.BOOL, onnx.TensorProto.FLOAT
INT64_MAX = 2**63 - 1


def softcapped(
    graph: OnnxGraph, value: str, bound: float, at: str, outputs: Sequence[str] | None = None
) -> str:
    """Adds ``bound * tanh(value / bound)``."""
    limit = graph.scalar(bound)
    scaled = graph.node("Div", [value, limit], f"{at}/softcap/Div")
    bounded = graph.node("Tanh", [scaled], f"{at}/softcap/Tanh")
    return graph.node("Mul", [bounded, limit], f"{at}/softcap/Mul", outputs=outputs)


class AttentionMask:
    """Boolean masks ``[batch, 1, sequence, total]``, one for each window that occurs.

    Causality and padding are spelled out because a runtime's own ``is_causal`` counts positions
    from zero when there is a past.
    """

    def __init__(self, graph: OnnxGraph) -> None:
        self._graph = graph
        self._masks: dict[int | None, str] = {}
        add, at = graph.node, "/model/mask"
        total = add("Shape", ["attention_mask"], f"{at}/total", start=1, end=2)
        length = add("Shape", ["input_ids"], f"{at}/sequence", start=1, end=2)
        past = add("Sub", [total, length], f"{at}/past")
        zero, step, first = graph.integer(0), graph.integer(1), graph.integers(0)
        total = add("Squeeze", [total, first], f"{at}/total_scalar")
        past = add("Squeeze", [past, first], f"{at}/past_scalar")
        self._columns = add("Range", [zero, total, step], f"{at}/columns")
        rows = add("Range", [past, total, step], f"{at}/row_range")
        self._rows = add("Unsqueeze", [rows, graph.integers(1)], f"{at}/rows")
        self._causal = add("LessOrEqual", [self._columns, self._rows], f"{at}/causal")
        padding = add(
            "Unsqueeze", ["attention_mask", graph.integers(1, 2)], f"{at}/padding_expanded"
        )
        self._padding = add("Cast", [padding], f"{at}/padding", to=BOOL)

    def get(self, window: int | None) -> str:
        """Returns the mask of layers that attend to the ``window`` latest positions."""
        if window not in self._masks:
            self._masks[window] = self._build(window)
        return self._masks[window]

    def _build(self, window: int | None) -> str:
        add, at = self._graph.node, "/model/mask"
        if window is None:
            return add("And", [self._causal, self._padding], f"{at}/full")
        at = f"{at}/window_{window}"
        oldest = add("Sub", [self._rows, self._graph.integer(window)], f"{at}/oldest")
        recent = add("Greater", [self._columns, oldest], f"{at}/recent")
        visible = add("And", [self._causal, recent], f"{at}/visible")
        return add("And", [visible, self._padding], f"{at}/mask")


class RotaryTables:
    """Rotary position embeddings in elementary ops; each has its tables once.

    The fused RotaryEmbedding op comes back broken from OpenVINO's blob cache.
    """

    def __init__(self, graph: OnnxGraph, ropes: Sequence[Rope]) -> None:
        self._graph = graph
        add, at = graph.node, "/model/rotary"
        frequencies = [
            graph.constant(
                rope.inv_freq.astype(np.float32), f"{numbered('model.rotary', number)}.inv_freq"
            )
            for number, rope in enumerate(ropes)
        ]
        position = add("Cast", ["position_ids"], f"{at}/position", to=FLOAT)
        self._column = add("Unsqueeze", [position, graph.integers(-1)], f"{at}/position_column")
        self._tables = [
            self._pair(inv_freq, rope.attention_factor, numbered("/model/rotary", number))
            for number, (inv_freq, rope) in enumerate(zip(frequencies, ropes, strict=True))
        ]
        self._halves = [len(rope.inv_freq) for rope in ropes]

    def _pair(self, inv_freq: str, factor: float, at: str) -> tuple[str, str]:
        """Cosines and sines of positions."""
        add = self._graph.node
        angles = add("Mul", [self._column, inv_freq], f"{at}/angles")
        both = add("Concat", [angles, angles], f"{at}/embedding", axis=-1)
        return self._table("Cos", both, factor, at), self._table("Sin", both, factor, at)

    def _table(self, op: str, angles: str, factor: float, at: str) -> str:
        add, at = self._graph.node, f"{at}/{op.lower()}"
        value = add(op, [angles], f"{at}/{op}")
        if factor != 1:
            value = add("Mul", [value, self._graph.scalar(factor)], f"{at}/Mul")
        return add("Unsqueeze", [value, self._graph.integers(1)], f"{at}/Unsqueeze")

    def apply(self, rope: int, heads: str, at: str) -> str:
        """Rotates ``[batch, heads, sequence, head_dim]`` by one of the ropes."""
        cos, sin = self._tables[rope]
        add, integers = self._graph.node, self._graph.integers
        axis, middle = integers(-1), integers(self._halves[rope])
        upper = add("Slice", [heads, middle, integers(INT64_MAX), axis], f"{at}/upper")
        lower = add("Slice", [heads, integers(0), middle, axis], f"{at}/lower")
        negated = add("Neg", [upper], f"{at}/Neg")
        turned = add("Concat", [negated, lower], f"{at}/Concat", axis=-1)
        straight = add("Mul", [heads, cos], f"{at}/cos")
        crossed = add("Mul", [turned, sin], f"{at}/sin")
        return add("Add", [straight, crossed], f"{at}/Add")


class _Writer:
    """Writes the nodes of a form into a graph; see ``edgerun.activations.base``."""

    def __init__(self, graph: OnnxGraph, at: str) -> None:
        self._graph, self._at = graph, at
        self._written: Counter[str] = Counter()

    def __call__(self, op: str, *inputs: str) -> str:
        """Adds a node, called after its op and, from the second on, numbered."""
        self._written[op] += 1
        number = f"_{self._written[op]}" if self._written[op] > 1 else ""
        return self._graph.node(op, list(inputs), f"{self._at}/{op}{number}")

    def number(self, value: float) -> str:
        """Adds a float32 constant."""
        return self._graph.scalar(value)


def activated(graph: OnnxGraph, name: str, value: str, at: str) -> str:
    """Adds the activation called ``name`` by itself, at a path of nodes."""
    active: str = ACTIVATIONS[name].onnx(_Writer(graph, at), value)
    return active


def gated(graph: OnnxGraph, name: str, gate: str, up: str, at: str) -> str:
    """Adds the product that the activation called ``name`` says, at a path of nodes."""
    active = activated(graph, name, gate, f"{at}/activation")
    other = ACTIVATIONS[name].up.onnx(_Writer(graph, f"{at}/up_activation"), up)
    return graph.node("Mul", [active, other], f"{at}/Mul")


def gated_heads(
    graph: OnnxGraph, name: str, gate: str, up: str, sizes: tuple[int, int], at: str
) -> str:
    """Adds the product of what each head makes, so many and so wide, with the head's gate."""
    heads, width = sizes
    add, integers = graph.node, graph.integers
    active = activated(graph, name, gate, f"{at}/activation")
    active = add("Unsqueeze", [active, integers(3)], f"{at}/Unsqueeze")
    apart = add("Reshape", [up, integers(0, 0, heads, width)], f"{at}/Reshape")
    product = add("Mul", [active, apart], f"{at}/Mul")
    return add("Reshape", [product, integers(0, 0, heads * width)], f"{at}/Reshape_flat")


def xielu(graph: OnnxGraph, value: str, square: str, bend: str, slope: float, at: str) -> str:
    """Adds an activation with a curve of its own; see ``edgerun/ops/pointwise/xielu.py``."""
    add = graph.node
    above = add("Relu", [value], f"{at}/Relu")
    squares = add("Mul", [above, above], f"{at}/squares")
    below = add("Sub", [add("Elu", [value], f"{at}/Elu"), value], f"{at}/Sub")
    terms = [
        add("Mul", [squares, square], f"{at}/square"),
        add("Mul", [below, bend], f"{at}/bend"),
        add("Mul", [value, graph.scalar(slope)], f"{at}/slope"),
    ]
    return add("Add", [add("Add", terms[:2], f"{at}/curve"), terms[2]], f"{at}/Add")


def largest(graph: OnnxGraph, value: str, deviations: float, at: str) -> str:
    """Cuts rows off so many standard deviations above their mean; what is left counts from there.

    Statistical top-k (You et al. 2025), as transformers' ``_gaussian_topk`` computes it.
    """
    add, axis = graph.node, graph.integers(-1)
    mean = add("ReduceMean", [value, axis], f"{at}/mean", keepdims=1)
    centred = add("Sub", [value, mean], f"{at}/centred")
    squares = add("Mul", [centred, centred], f"{at}/squares")
    variance = add("ReduceMean", [squares, axis], f"{at}/variance", keepdims=1)
    deviation = add("Sqrt", [variance], f"{at}/Sqrt")
    cut = add("Mul", [deviation, graph.scalar(deviations)], f"{at}/cut")
    above = add("Sub", [centred, cut], f"{at}/above")
    return add("Relu", [above], f"{at}/Relu")


def norm_of_groups(
    graph: OnnxGraph,
    op: str,
    value: str,
    weight: str,
    sizes: tuple[int, int],
    epsilon: float,
    name: str,
) -> str:
    """Adds a norm of each group of a row, with weights that differ from group to group.

    ONNX's norms have one weight for all, so these have ones.

    Args:
        graph: what nodes are added to.
        op: ``RMSNormalization`` or ``LayerNormalization``.
        value: ``[batch, sequence, groups * size]``, as what is returned.
        weight: ``[groups * size]``.
        sizes: how many groups there are, and the elements of one.
        epsilon: of the norm.
        name: path of the module, ``model.layers.N.<path>``.
    """
    add, integers, at = graph.node, graph.integers, node_path(name)
    groups = add("Reshape", [value, integers(0, 0, *sizes)], f"{at}/groups")
    ones = graph.constant(np.ones(sizes[1], np.float32), f"{name}.ones")
    groups = add(op, [groups, ones], f"{at}/{op}", axis=-1, epsilon=epsilon)
    joined = add("Reshape", [groups, integers(0, 0, sizes[0] * sizes[1])], f"{at}/joined")
    return add("Mul", [joined, weight], f"{at}/Mul")


def quantised_activations(graph: OnnxGraph, value: str, at: str) -> str:
    """Rounds each token's row to 8 bits of its largest magnitude, and scales back.

    BitNet b1.58 (Ma et al. 2024, equation 4), as transformers' ``ActQuant`` computes it.
    """
    add, scalar = graph.node, graph.scalar
    magnitude = add("Abs", [value], f"{at}/Abs")
    largest = add("ReduceMax", [magnitude, graph.integers(-1)], f"{at}/ReduceMax", keepdims=1)
    largest = add("Clip", [largest, scalar(1e-5)], f"{at}/largest")
    scale = add("Div", [scalar(127), largest], f"{at}/scale")
    scaled = add("Mul", [value, scale], f"{at}/Mul")
    rounded = add("Round", [scaled], f"{at}/Round")
    clipped = add("Clip", [rounded, scalar(-128), scalar(127)], f"{at}/Clip")
    return add("Div", [clipped, scale], f"{at}/Div")
