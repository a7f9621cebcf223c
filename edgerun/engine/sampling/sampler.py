"""The sampler: a function from logits to an id, put together from processors."""

from __future__ import annotations

import math
from collections.abc import Callable
from random import Random
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from edgerun.engine.sampling.base import Candidates, History, Processor, place, registered, scratch
from edgerun.engine.sampling.params import SamplingParams
from edgerun.errors import BackendError

Sampler: TypeAlias = Callable[[NDArray[np.float32], History], int]


def make_sampler(params: SamplingParams) -> Sampler:
    """Makes a function that chooses the next id.

    Args:
        params: what the caller asks for. With a seed, the same logits give the same ids; the
            generator is NumPy's PCG64, one number a token.

    Returns:
        A function of logits, float32 ``[vocab]``, left unchanged, and ``History``. It raises
        BackendError for logits of which none is finite or some is NaN.

    Example:
        >>> sample = make_sampler(SamplingParams(temperature=0))
        >>> sample(np.array([0.1, 2.0, 0.3], np.float32), History([]))
        1
    """
    greedy = params.temperature == 0
    processors = _processors(params, greedy=greedy)
    if greedy and not processors:
        return _greedy
    choose = _likeliest if greedy else _drawer(params.seed)

    def sample(logits: NDArray[np.float32], history: History) -> int:
        _check(logits)
        copied = scratch("logits", len(logits))
        copied[:] = logits
        candidates = Candidates(copied)
        for process in processors:
            candidates = process(candidates, history)
        return choose(candidates)

    return sample


def _processors(params: SamplingParams, *, greedy: bool) -> list[Processor]:
    """What is to be done, in order.

    Greedy choice needs nothing that keeps the likeliest token, unless something follows that may
    change it: typical-p sees what top-k left.
    """
    made = [(entry.make(params), entry.keeps_likeliest) for entry in registered()]
    active = [(process, keeps) for process, keeps in made if process is not None]
    while greedy and active and active[-1][1]:
        active.pop()
    return [process for process, _ in active]


def _greedy(logits: NDArray[np.float32], history: History) -> int:
    chosen = int(logits.argmax())  # the first NaN, if there is one
    _check_highest(float(logits[chosen]))
    return chosen


def _check(logits: NDArray[np.float32]) -> None:
    # max propagates NaN, so one pass finds NaN, infinity and "all tokens impossible".
    _check_highest(float(logits.max()))


def _check_highest(highest: float) -> None:
    if not math.isfinite(highest):
        raise BackendError(
            f"the model computed logits whose maximum is {highest}; check the weights, "
            "or run with EDGERUN_VALIDATE=1 to find the operation"
        )


def _likeliest(candidates: Candidates) -> int:
    return _id(candidates, int(np.argmax(candidates.logits)))


def _drawer(seed: int | None) -> Callable[[Candidates], int]:
    random = Random(seed).random  # numpy.random would take 20 ms of every start to import

    def draw(candidates: Candidates) -> int:
        weights = candidates.weights()
        index = place(weights, random() * float(weights.sum(dtype=np.float64)))
        if weights[index] == 0:  # rounding carried the sum past the last possible token
            index = int(np.flatnonzero(weights)[-1])
        return _id(candidates, index)

    return draw


def _id(candidates: Candidates, index: int) -> int:
    return index if candidates.ids is None else int(candidates.ids[index])
