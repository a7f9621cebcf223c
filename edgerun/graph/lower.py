"""An ONNX graph becomes one of our ops, or is refused."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from edgerun.errors import BundleError, UnsupportedError
from edgerun.formats.base import PackedWeight
from edgerun.graph.attributes import read_attributes
from edgerun.graph.check import check
from edgerun.graph.ir import Constant, Graph
from edgerun.graph.mapped_file import ArrayReader, find_file
from edgerun.graph.onnx_nodes import check_counts
from edgerun.graph.passes.registry import ATTRIBUTES, PASSES
from edgerun.graph.shapes import ALTERED
from edgerun.ops.registry import OPS
from edgerun.state.spec import State, owners_of

FLOAT = 1  # onnx.TensorProto
TOKENS = frozenset(("input_ids", "attention_mask", "position_ids"))  # what other inputs are called
Widened: TypeAlias = tuple[NDArray[np.float32], NDArray[Any]]  # from halves

PAST = "past_"  # what the inputs that are states are called, as in ``past_key_values.0.key``


def lower(graph: Graph) -> Graph:
    """Applies all passes, and checks what they made.

    Returns:
        a graph of the ops in ``ops/`` that fits together, with the shapes of all its values.

    Raises:
        BundleError: something is missing, of another type or size, or contradicts the rest.
        UnsupportedError: a node is none of our ops and nothing that a pass makes one of.
    """
    check_counts(graph.nodes)
    _check_tokens(graph)
    inputs, (graph, widened) = graph.inputs, _widened(read_attributes(graph, ATTRIBUTES))
    for step in PASSES:
        graph = step.rewrite(graph)
    shapes = check(graph)
    _check_states(inputs, graph)
    return replace(graph, shapes=shapes, constants=_as_stored(graph.constants, widened))


def _check_tokens(graph: Graph) -> None:
    """What passes take for the tokens of a call, by its name, is an input.

    Raises:
        UnsupportedError: it is a constant, or a node makes it.
    """
    own = TOKENS.difference(graph.inputs)
    node = next((node for node in graph.nodes if not own.isdisjoint(node.inputs)), None)
    if node is not None:
        name = next(name for name in node.inputs if name in own)
        raise UnsupportedError(
            f"node '{node.name}' reads '{name}', which is no input of the model file but made in "
            "it; export the model again"
        )


def _widened(graph: Graph) -> tuple[Graph, list[Widened]]:
    """Constants that a Cast makes float32 of half precision, as float32: scales, as a rule.

    What sums are multiplied by stays: offsets of blocks, which are read as halves.
    """
    sums = {node.outputs[0] for node in graph.nodes if node.op == "ReduceSum"}
    multiplied = (node.inputs for node in graph.nodes if node.op == "MatMul")
    offsets = {right for left, right in multiplied if left in sums}
    live, reader = [], ArrayReader()
    widened: dict[str, Widened] = {}  # by the name of the halves, which many may read
    for node in graph.nodes:
        half = graph.constants.get(node.inputs[0]) if node.op == "Cast" else None
        if (
            isinstance(half, np.ndarray)
            and half.dtype == np.float16
            and node.attrs["to"] == FLOAT
            and node.outputs[0] not in offsets
        ):
            # Read: what is looked at in the mapping counts as memory of this process.
            name = node.inputs[0]
            if name not in widened:
                widened[name] = reader.read(half).astype(np.float32), half
            graph.add_constant(node.outputs[0], widened[name][0])
        else:
            live.append(node)
    return (graph.with_nodes(live) if widened else graph), list(widened.values())


def _as_stored(
    constants: Mapping[str, Constant], widened: Sequence[Widened]
) -> dict[str, Constant]:
    """Scales as halves of their file again, unless a pass has made others of them.

    As float32 they would stay in memory beside what is prepared of them: a byte for eight weights.
    Those of experts stay as they are: whoever reads one from the file counts on float32.
    """
    stored = {id(wide): half for wide, half in widened if find_file(half) is not None}
    changed = dict(constants)
    for name, weight in constants.items():
        if isinstance(weight, PackedWeight):
            wide = weight.scales if weight.scales.base is None else weight.scales.base
            half = stored.get(id(wide))
            if half is not None and half.size == weight.scales.size:
                changed[name] = replace(weight, scales=half.reshape(weight.scales.shape))
    return changed


def _check_states(inputs: Sequence[str], graph: Graph) -> None:
    """Every state that the file takes is one that a layer reads, and one alone.

    What else reads it comes later, and reads what is there.
    """
    declared: dict[str, tuple[str, State]] = {}
    for node in graph.nodes:
        op = OPS[node.op]
        if op.state is not None:
            state = op.state(node.attrs)
            if state.name in declared:
                raise BundleError(
                    f"node '{node.name}' keeps {state.name}, which is that of "
                    f"'{declared[state.name][0]}': expected a state for each layer: {ALTERED}"
                )
            declared[state.name] = node.name, state
        if op.reads is not None:
            state = op.reads(node.attrs)
            _, there = declared.get(state.name, ("", None))
            if state != there:
                raise BundleError(
                    f"node '{node.name}' reads {state}, and of the layers before it one keeps "
                    f"{there or 'nothing of that name'}: {ALTERED}"
                )
    for name in inputs:
        if name.startswith(PAST) and declared.keys().isdisjoint(owners_of(name)):
            raise BundleError(f"the model file takes {name}, which no layer reads: {ALTERED}")
