"""Changes of the loops over tokens that files have."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
from onnx import numpy_helper

from edgerun.graph.ir import Graph
from edgerun.graph.lower import lower
from edgerun.graph.onnx_reader import read_graph
from tests.support.altered import Alteration, AlteredBundle


def lowered(folder: Path) -> Graph:
    path = folder / "model.onnx"
    return lower(read_graph(path, path.read_bytes()))


def body(bundle: AlteredBundle) -> onnx.GraphProto:
    """What its first loop does with a token."""
    scan = next(node for node in bundle.model.graph.node if node.op_type == "Scan")
    return next(each.g for each in scan.attribute if each.name == "body")


def rewired(name: str, place: int, value: str) -> Alteration:
    def alter(bundle: AlteredBundle) -> None:
        bundle.node(name).input[place] = value

    return alter


def swapped(name: str, first: int, second: int) -> Alteration:
    def alter(bundle: AlteredBundle) -> None:
        inputs = bundle.node(name).input
        inputs[first], inputs[second] = inputs[second], inputs[first]

    return alter


def token(alter: Callable[[onnx.GraphProto], object]) -> Alteration:
    """What a token does is something else."""
    return lambda bundle: alter(body(bundle)) and None


def read(place: int, number: int, name: str) -> Alteration:
    return token(lambda graph: graph.node[place].input.__setitem__(number, name))


def op(place: int, op_type: str) -> Alteration:
    return token(lambda graph: setattr(graph.node[place], "op_type", op_type))


def one_more_constant(graph: onnx.GraphProto) -> None:
    graph.initializer.append(numpy_helper.from_array(np.zeros(1, "f"), "decay"))


def one_more_sparse_constant(graph: onnx.GraphProto) -> None:
    graph.sparse_initializer.add(dims=[1]).values.name = "decay"


def other_mask(bundle: AlteredBundle) -> None:
    for name in ("total", "new"):
        bundle.node(f"model/tokens/{name}").input[0] = "position_ids"


def constant(name: str, place: int, *values: float, dtype: type = np.int64) -> Alteration:
    """Gives a node a constant of its own."""

    def alter(bundle: AlteredBundle) -> None:
        tensor = numpy_helper.from_array(np.array(values, dtype), "own")
        bundle.model.graph.initializer.append(tensor)
        for end in ("query", "key") if "*" in name else ("",):
            bundle.node(name.replace("*", end)).input[place] = "own"

    return alter
