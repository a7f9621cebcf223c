"""The form in which experts of groups that are not chosen get out of the choice."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from edgerun.graph.attributes import Read, Rules
from edgerun.graph.match import Const, Match, Matcher, Num, Op, Pattern

NO_GROUPS: Mapping[str, int] = {"groups": 1, "top_groups": 1, "group_top_k": 1}
_OUT_OR_IN = (-np.inf, 0.0)


def in_chosen_groups(ranks: Pattern, axes: int) -> Pattern:
    """What experts are chosen by, where some groups of them are chosen first.

    Args:
        ranks: what they are chosen by otherwise.
        axes: those that ``ranks`` has before that of experts.
    """
    parts = Op("Reshape", ranks, Const("group_shape"))
    best = Op("TopK", parts, Const("group_top_k"), axis=-1, largest=1, sorted=1)
    worth = Op("ReduceSum", best, Num(-1), keepdims=0)
    chosen = Op("TopK", worth, Const("top_groups"), output=1, axis=-1, largest=1, sorted=1)
    each = Op("OneHot", chosen, Const("groups"), Num(_OUT_OR_IN), axis=-2)
    left = Op("ReduceMax", each, Num(-1), keepdims=1)
    return Op("Reshape", Op("Add", parts, left), Num((*[0] * axes, -1)))


def groups_of(match: Match, matcher: Matcher, axes: int) -> Mapping[str, int] | None:
    """Attributes of ``route`` of a choice in this form; None if its numbers contradict."""
    numbers = {name: matcher.number(match[name]) for name in NO_GROUPS}
    shape = matcher.graph.array(match["group_shape"]).reshape(-1).tolist()
    if None in numbers.values() or shape != [*[0] * axes, numbers["groups"], -1]:
        return None
    return {name: int(number) for name, number in numbers.items() if number is not None}


READS: Mapping[str, Rules] = {
    "OneHot": {"axis": Read(int, -1)},
    "ReduceMax": {"keepdims": Read(int, 1), "noop_with_empty_axes": 0},
}
