"""The choice of experts."""

from __future__ import annotations

from typing import Any

import numpy as np

from edgerun.backends.base import Support
from edgerun.backends.cpu.binder import Binder
from edgerun.backends.cpu.emit.emitter import Emitter
from edgerun.backends.cpu.operands import Argument
from edgerun.graph.ir import Graph, Node
from edgerun.ops.route import MIXER

_NUMBERS = ("normalise", "groups", "top_groups", "group_top_k")


def emit_route(binder: Binder, node: Node, index: int) -> None:
    """Scores the experts of each row."""
    x, counted_by = binder.values[node.inputs[0]], binder.counted_by[node.inputs[0]]
    bias = binder.vector(node.inputs[1]) if any(node.inputs[1:]) else None
    out = binder.new(node.outputs[0], x.width, counted_by)
    arguments: dict[str, Argument] = {
        "rows": binder.count(counted_by),
        "x": x,
        "x_stride": x.stride,
        "out": out,
        "out_stride": out.stride,
        "scale": np.array([node.attrs["scale"]], np.float32),
        "experts": x.width,
        "top_k": node.attrs["top_k"],
    }
    constants: dict[str, Any] = {}
    if node.attrs["scoring"] == MIXER:
        arguments["margin"] = np.array([node.attrs["margin"]], np.float32)
    else:
        arguments |= {
            "bias": bias,
            "epsilon": np.array([node.attrs["epsilon"]], np.float32),
            **{name: node.attrs[name] for name in _NUMBERS},
        }
        constants = {
            "scoring": node.attrs["scoring"],
            "biased": "" if bias is None else node.attrs["biased"],
            "grouped": node.attrs["groups"] > 1,
        }
    binder.emit(
        MIXER if node.attrs["scoring"] == MIXER else "route",
        constants,
        arguments,
        chunks=(counted_by, 1, 1),
        reads={x.key},
        writes={out.key},
        label=node.name,
    )


def supports_route(graph: Graph, node: Node) -> Support:
    """A mixer chooses by logits alone, of all experts."""
    is_plain = not (any(node.inputs[1:]) or node.attrs["normalise"] or node.attrs["groups"] > 1)
    if node.attrs["scoring"] == MIXER and not is_plain:
        return Support(False, f"{MIXER} with a bias, groups or a sum of scores has no kernel")
    return Support(True)


EMITTER = Emitter(emit_route, supports=supports_route)
