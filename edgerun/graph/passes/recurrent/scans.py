"""What loops over tokens have in common: a convolution before them, a body, and what is kept."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from edgerun.errors import BundleError
from edgerun.graph.attributes import Read, Rules
from edgerun.graph.ir import Body, Node
from edgerun.graph.match import Match, Matcher, Op, Pattern, Var
from edgerun.graph.passes.recurrent.short_conv import (
    CHANNELS_FIRST,
    LAST,
    TOKENS,
    check_remembered,
)
from edgerun.graph.passes.states import check_states, layer_of
from edgerun.graph.shapes import ALTERED


def seen(value: str) -> Pattern:
    """What a convolution reads: what is remembered, and the rows of a value without padding."""
    inputs = Op("Mul", Op("Transpose", Var(value), perm=CHANNELS_FIRST), TOKENS)
    return Op("Concat", Var("past"), inputs, axis=2)


@dataclass(frozen=True, slots=True)
class Token:
    """What a token does, by numbers of values: inputs of the body come first, then its nodes'.

    Attributes:
        nodes: op, inputs and attributes of each, which makes the next value.
        inputs: how many there are.
        outputs: the state, and the result.
    """

    nodes: tuple[tuple[str, tuple[int, ...], dict[str, tuple[int, ...]]], ...]
    inputs: int
    outputs: tuple[int, int]

    def is_in(self, body: Body) -> bool:
        """Whether a body does this, with no value from elsewhere."""
        if len(body.nodes) != len(self.nodes) or not body.is_plain:
            return False
        numbers = {name: number for number, name in enumerate(body.inputs)}
        for node, (op, inputs, attributes) in zip(body.nodes, self.nodes, strict=True):
            read = tuple(numbers.get(name) for name in node.inputs)
            if (node.op, read, dict(node.attrs)) != (op, inputs, attributes):
                return False
            if len(node.outputs) != 1:
                return False
            numbers[node.outputs[0]] = len(numbers)
        outputs = tuple(numbers.get(name) for name in body.outputs)
        return len(numbers) == self.inputs + len(self.nodes) and outputs == self.outputs


def scanned_layer(scan: Node, token: Token, mixed: Match, state: str, matcher: Matcher) -> int:
    """The layer whose state a loop changes, token by token.

    Args:
        scan: the loop.
        token: what its body should do.
        mixed: of the convolution before it.
        state: the state that it begins with.
        matcher: of the graph.

    Raises:
        BundleError: it does something else with tokens, or what it reads is no layer's.
    """
    layer = layer_of(matcher, recurrent=state, conv=mixed["past"])
    end, inputs = matcher.number(mixed["end"]), (mixed["attention_mask"], mixed["input_ids"])
    is_whole = inputs == ("attention_mask", "input_ids") and end is not None and end >= LAST
    is_scan = is_whole and len(scan.outputs) == 2
    if layer is not None and is_scan and token.is_in(scan.attrs["body"]):
        return layer
    raise BundleError(
        f"node '{scan.name}' ({scan.op}) does something else with tokens than such a layer does, "
        f"or reads something else: {ALTERED}"
    )


def check_given_back(layer: int, scan: Node, conv: Node, count: int, matcher: Matcher) -> None:
    """Checks that the file gives back the state, and the last inputs of ``count`` tokens.

    Raises:
        UnsupportedError: it gives back something else.
    """
    check_states(matcher, scan, layer, recurrent=scan.outputs[0])
    check_remembered(layer, conv, count, matcher)


def check_width(conv: Node, scan: Node, width: int, expected: int) -> None:
    """Checks that a convolution makes what a loop reads of a token.

    Raises:
        BundleError: it makes more or less.
    """
    if width != expected:
        raise BundleError(
            f"node '{conv.name}' convolves {width} values of a token, and '{scan.name}' reads "
            f"{expected}: {ALTERED}"
        )


def short(numbers: list[Any]) -> str:
    """The first of some numbers, for messages."""
    return f"{numbers[:5]}{'...' if len(numbers) > 5 else ''}"


# From the operator specifications of ONNX (opset 23).
SCAN_READS: Mapping[str, Rules] = {
    "Gather": {"axis": Read(int, 0)},
    "Scan": {
        "body": Read(Body, needed=True),
        "num_scan_inputs": Read(int, needed=True),
        "scan_input_axes": Read(tuple),
        "scan_output_axes": Read(tuple),
    },
    "Split": {"axis": Read(int, 0)},
}
