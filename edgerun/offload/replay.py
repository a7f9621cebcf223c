"""What a cache would have done, had it been there when a trace was made."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from edgerun.errors import InputError
from edgerun.offload.cache import ExpertCache, Step
from edgerun.offload.policies.base import Policy
from edgerun.offload.trace_file import NO_EXPERT, Trace


def check_layers(trace: Trace, experts: Mapping[str, int]) -> None:
    """Checks that a trace has the layers of a model; a digest alone is what a file says of itself.

    Args:
        trace: of the model, as it says.
        experts: of each of its layers, by name and in order.

    Raises:
        InputError: the trace has other layers.
    """
    sizes = len(trace.layers), trace.experts
    expected = len(experts), max(experts.values(), default=0)
    if sizes != expected:
        raise InputError(
            "the trace has {} layers of {} experts and the model {} of {}: make one with "
            "`edgerun trace`".format(*sizes, *expected)
        )


def steps_of(trace: Trace, place: int, last: int = 0) -> list[Step]:
    """What a layer needs, token by token.

    Args:
        trace: of a model.
        place: of the layer among those of the trace.
        last: how many of the last tokens; 0 for all.
    """
    return list(_steps(trace, place, last))


def _steps(trace: Trace, place: int, last: int = 0) -> Iterator[Step]:
    """The same one by one: of a long trace all take twenty times as much memory as the trace."""
    for choices in trace.choices[-last:, place]:
        chosen = choices[choices["expert"] != NO_EXPERT]
        experts, scores = chosen["expert"].tolist(), chosen["weight"].tolist()
        yield Step(trace.layers[place], tuple(experts), tuple(scores))


def count_hits(steps: Iterable[Step], capacity: int, policy: Policy) -> int:
    """How many experts are resident when they are needed, in a cache that is empty at first.

    Raises:
        InputError: the cache is too small for a step.
    """
    cache = ExpertCache(capacity, policy)
    return sum(len(step.experts) - len(cache.access(step).missing) for step in steps)


def layer_hit_shares(trace: Trace, capacity: int, policy: Policy) -> list[float]:
    """Hits per use in each layer of a trace, in one cache that is empty at first for all of them.

    Raises:
        InputError: the cache is too small for a step.
    """
    cache = ExpertCache(capacity, policy)
    layers = [_steps(trace, place) for place in range(len(trace.layers))]
    uses, hits = [0] * len(layers), [0] * len(layers)
    for steps in zip(*layers, strict=True):
        for place, step in enumerate(steps):
            uses[place] += len(step.experts)
            hits[place] += len(step.experts) - len(cache.access(step).missing)
    return [hit / max(1, use) for hit, use in zip(hits, uses, strict=True)]
