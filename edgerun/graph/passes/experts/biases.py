"""Constants beside the choice of experts: a bias that the choice alone sees, and numbers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import combinations

from edgerun.graph.match import Match

# By the name of a bias what it is added to.
ADDED_TO: Mapping[str, str] = {"bias": "scores", "logit_bias": "logits"}
_NUMBERS = ("epsilon", "scale")


def options() -> Iterator[frozenset[str]]:
    """All sets of their names that there may be, the smallest first; of biases one at most."""
    names = (*ADDED_TO, *_NUMBERS)
    for count in range(len(names)):
        for chosen in map(frozenset, combinations(names, count)):
            if not chosen >= ADDED_TO.keys():
                yield chosen


def bias_of(match: Match, names: frozenset[str]) -> list[str]:
    """The bias of a choice with constants of some names; nothing if it has none."""
    return [match[name] for name in ADDED_TO if name in names]


def added_to(names: frozenset[str]) -> str:
    """What the bias is added to; without one the choice's attribute says scores."""
    return next((ADDED_TO[name] for name in ADDED_TO if name in names), "scores")
