"""The choice of experts, TopK over the router's logits, becomes ``route``."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import product

from edgerun.errors import UnsupportedError
from edgerun.graph.attributes import Read, Rules
from edgerun.graph.ir import Graph, Node
from edgerun.graph.match import Const, Matcher, Num, Op, Pattern, Var
from edgerun.graph.passes.base import Pass
from edgerun.graph.passes.experts import biases, groups
from edgerun.ops.route import MIXER

LAST = -1
MOST_CHOICES = 1024  # of a graph: one in a layer, or three; there are many forms to try on each
_AXES = 2  # of logits, before that of experts
_SCORES: Mapping[str, Pattern] = {
    "softmax": Op("Softmax", Var("logits"), axis=LAST),
    "sigmoid": Op("Sigmoid", Var("logits")),
}
_NOTHING = Op("ConstantOfShape", Op("Shape", Var("logits"), start=0, end=None))


@dataclass(frozen=True, slots=True)
class _Form:
    """A way to write the choice out.

    Attributes:
        scoring: what makes scores of logits.
        normalised: whether scores are divided by their sum.
        grouped: whether groups of experts are chosen first.
        constants: those of ``biases.options`` that there are.
        pattern: its nodes.
    """

    scoring: str
    normalised: bool
    grouped: bool
    constants: frozenset[str]
    pattern: Pattern


def _forms() -> Iterator[_Form]:
    ways = product(_SCORES, (False, True), (False, True), biases.options())
    for scoring, normalised, grouped, constants in ways:
        if normalised or "epsilon" not in constants:
            pattern = _pattern(scoring, normalised, grouped, constants)
            yield _Form(scoring, normalised, grouped, constants, pattern)


def _pattern(scoring: str, normalised: bool, grouped: bool, constants: frozenset[str]) -> Pattern:
    scores: Pattern = _SCORES[scoring]
    ranks: Pattern = Var("logits")
    if "bias" in constants:
        ranks = Op("Add", scores, Const("bias"))
    elif "logit_bias" in constants:
        ranks = Op("Add", ranks, Const("logit_bias"))
    if grouped:
        ranks = groups.in_chosen_groups(ranks, _AXES)
    ids = Op("TopK", ranks, Const("top_k"), output=1, axis=LAST, largest=1, sorted=1)
    value: Pattern = Op("GatherElements", scores, ids, axis=LAST)
    if normalised:
        total = Op("ReduceSum", value, Num(LAST), keepdims=1)
        total = Op("Add", total, Const("epsilon")) if "epsilon" in constants else total
        value = Op("Div", value, total)
    if "scale" in constants:
        value = Op("Mul", value, Const("scale"))
    return Op("ScatterElements", _NOTHING, ids, value, axis=LAST, reduction="none")


_FORMS = tuple(_forms())


def _mixer_form() -> Pattern:
    logits, nothing = Var("logits"), Num(-math.inf)
    rest: Pattern = logits
    ids: list[Pattern] = []
    scores: list[Pattern] = []
    for _ in range(2):
        best, chosen = (
            Op("TopK", rest, Num(1), output=place, axis=LAST, largest=1, sorted=1)
            for place in (0, 1)
        )
        size = Op("Max", Op("Abs", logits), best)
        is_far = Op("Greater", Op("Div", Op("Sub", best, logits), size), Const("margin"))
        shares = Op("Softmax", Op("Where", is_far, nothing, rest), axis=LAST)
        scores.append(Op("GatherElements", shares, chosen, axis=LAST))
        ids.append(chosen)
        removed = Op("Add", best, nothing)
        rest = Op("ScatterElements", rest, chosen, removed, axis=LAST, reduction="none")
    both = (Op("Concat", *parts, axis=LAST) for parts in (ids, scores))
    return Op("ScatterElements", _NOTHING, *both, axis=LAST, reduction="none")


_MIXER = _mixer_form()


def fuse_routes(graph: Graph) -> Graph:
    """Rewrites every ScatterElements whose surroundings have the exporter's form.

    Raises:
        UnsupportedError: there are more than any model has.
    """
    count = sum(node.op == "ScatterElements" for node in graph.nodes)
    if not count:
        return graph
    if count > MOST_CHOICES:
        raise UnsupportedError(
            f"the model file has {count} nodes of ScatterElements; expected at most {MOST_CHOICES}"
        )
    matcher = Matcher(graph)
    # Constants are left to the next pass: there are as many as nodes.
    nodes = [
        _rewrite(node, matcher) if node.op == "ScatterElements" else node for node in graph.nodes
    ]
    return replace(graph, nodes=nodes)


def _rewrite(node: Node, matcher: Matcher) -> Node:
    for form in _FORMS:
        match = matcher.match(node.outputs[0], form.pattern)
        if match is None:
            continue
        top_k = matcher.number(match["top_k"])
        numbers = matcher.numbers(match, form.constants - biases.ADDED_TO.keys())
        of_groups = groups.groups_of(match, matcher, _AXES) if form.grouped else groups.NO_GROUPS
        if top_k is None or numbers is None or of_groups is None or not top_k.is_integer():
            continue
        attributes = {
            "top_k": int(top_k),
            "scoring": form.scoring,
            "biased": biases.added_to(form.constants),
            "normalise": int(form.normalised),
            **{"epsilon": 0.0, "scale": 1.0, "margin": 0.0},
            **numbers,
            **of_groups,
        }
        inputs = (match["logits"], *biases.bias_of(match, form.constants))
        return node.replace(op="route", inputs=inputs, attrs=attributes)
    return _mixer(node, matcher)


def _mixer(node: Node, matcher: Matcher) -> Node:
    """The choice of two experts, of which each has a softmax of its own."""
    match = matcher.match(node.outputs[0], _MIXER)
    numbers = None if match is None else matcher.numbers(match, ("margin",))
    if match is None or numbers is None:
        return node
    attributes = {
        "top_k": 2,
        "scoring": MIXER,
        "biased": "scores",
        "normalise": 0,
        "epsilon": 0.0,
        "scale": 1.0,
        **numbers,
        **groups.NO_GROUPS,
    }
    return node.replace(op="route", inputs=(match["logits"],), attrs=attributes)


# From the operator specifications of ONNX (opset 23).
READS: Mapping[str, Rules] = {
    **groups.READS,
    "Concat": {"axis": Read(int, needed=True)},
    "GatherElements": {"axis": Read(int, 0)},
    "ReduceSum": {"keepdims": Read(int, 1), "noop_with_empty_axes": 0},
    "ScatterElements": {"axis": Read(int, 0), "reduction": Read(str, "none")},
    "Shape": {"start": Read(int, 0), "end": Read(int)},
    "Softmax": {"axis": Read(int, -1)},
    "TopK": {"axis": Read(int, -1), "largest": Read(int, 1), "sorted": Read(int, 1)},
}
PASS = Pass(6, fuse_routes, READS)
