"""What layers keep from call to call: where a file takes it, and that it gives back the same.

A back-end that runs our ops keeps it by itself. So what a file says of it changes nothing there,
and has to be what such a layer does.
"""

from __future__ import annotations

import re

from edgerun.errors import UnsupportedError
from edgerun.graph.ir import Node
from edgerun.graph.match import Matcher

_PAST_NAME = re.compile(r"past_key_values\.(\d+)\.(\w+)", re.ASCII)


def layer_of(matcher: Matcher, **past: str) -> int | None:
    """The number of the layer that inputs of a file belong to; None if they are no such inputs.

    Args:
        matcher: of the graph.
        past: names of the inputs by what they are: ``key``, ``value``, ``conv``, ``recurrent``.
    """
    layers = set()
    for kind, name in past.items():
        match = _PAST_NAME.fullmatch(name)
        if match is None or match[2] != kind or name not in matcher.inputs:
            return None
        layers.add(int(match[1]))
    return layers.pop() if len(layers) == 1 else None


def present_name(layer: int, kind: str) -> str:
    """What a file calls that which it gives back of a layer."""
    return f"present.{layer}.{kind}"


def check_states(matcher: Matcher, node: Node, layer: int, **names: str) -> None:
    """Checks that a file gives back what a layer keeps.

    Args:
        matcher: of the graph.
        node: that changes what is kept, for the message.
        layer: number of the layer.
        names: of what the node makes of it, by what it is.

    Raises:
        UnsupportedError: it gives back something else, or nothing.
    """
    for kind, name in names.items():
        present = present_name(layer, kind)
        if name != present or present not in matcher.outputs:
            raise refused(node, present)


def refused(node: Node, present: str) -> UnsupportedError:
    """The error for a file that gives back something else of a layer than it keeps."""
    return UnsupportedError(
        f"the model file does not give back as '{present}' what the layer of node '{node.name}' "
        f"({node.op}) keeps; export the model again"
    )
