"""Shares a number of bytes among tensors so that the sum of their costs is small."""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from edgerun_export.recipe import TensorRecipe


@dataclass(frozen=True, slots=True)
class Choice:
    """A way to store a tensor.

    Attributes:
        kind: format and group size.
        bytes: that it takes.
        cost: what it does to the text, in any unit that can be added.
    """

    kind: TensorRecipe
    bytes: int
    cost: float


def hull(choices: Sequence[Choice]) -> list[Choice]:
    """Those that some price of a byte makes the best, from the smallest on.

    Each costs less than the one before, and each byte more brings less than the bytes before.
    """
    hull: list[Choice] = []
    for choice in sorted(choices, key=lambda each: (each.bytes, each.cost)):
        if hull and choice.cost >= hull[-1].cost:
            continue
        while len(hull) > 1 and _gain(hull[-2], hull[-1]) <= _gain(hull[-2], choice):
            hull.pop()
        hull.append(choice)
    return hull


def allocate(choices: Mapping[str, Sequence[Choice]], budget: int) -> dict[str, Choice]:
    """Chooses for every tensor, so that all fit and the sum of costs is small.

    Starts from the smallest and takes the step of some tensor along its hull that brings most for
    a byte, again and again (Everett 1963); what is left of the budget goes to whatever single
    change brings most. The sum is the least for the bytes that were used before that.

    Args:
        choices: for every tensor.
        budget: bytes, no less than the smallest choices take.
    """
    hulls = {name: hull(each) for name, each in choices.items()}
    chosen = {name: each[0] for name, each in hulls.items()}
    left = budget - sum(each.bytes for each in chosen.values())
    steps = [(-_gain(each[0], each[1]), name, 1) for name, each in hulls.items() if len(each) > 1]
    heapq.heapify(steps)
    while steps:
        _, name, at = heapq.heappop(steps)
        step = hulls[name][at]
        price = step.bytes - chosen[name].bytes
        if price > left:
            continue  # no later step of this tensor is possible either
        left -= price
        chosen[name] = step
        if at + 1 < len(hulls[name]):
            gain = _gain(step, hulls[name][at + 1])
            heapq.heappush(steps, (-gain, name, at + 1))
    return _filled(choices, chosen, left)


def _filled(
    choices: Mapping[str, Sequence[Choice]], chosen: dict[str, Choice], left: int
) -> dict[str, Choice]:
    """Single changes that fit into what is left, the one that brings most first."""
    while True:
        changes = [
            (chosen[name].cost - choice.cost, name, choice)
            for name, each in choices.items()
            for choice in each
            if choice.cost < chosen[name].cost and choice.bytes - chosen[name].bytes <= left
        ]
        if not changes:
            return chosen
        _, name, choice = max(changes, key=lambda change: (change[0], change[1]))
        left -= choice.bytes - chosen[name].bytes
        chosen[name] = choice


def _gain(smaller: Choice, larger: Choice) -> float:
    """What a byte brings."""
    return (smaller.cost - larger.cost) / (larger.bytes - smaller.bytes)
