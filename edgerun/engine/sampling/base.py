"""What a processor is, and how one is found.

A processor is one file in this folder with one function marked ``@processor(order)``. The function
gets the parameters and returns what to do with candidates, or None if the parameters ask nothing
of it. Order decides who goes first:

====  ======================================================
 10   logit bias
 20   repetition, presence and frequency penalties
 30   temperature
 40   top-k
 50   top-p
 60   min-p
 70   typical-p
====  ======================================================

It is the order of Hugging Face's ``generate``; each filter sees the probabilities that the ones
before it left, renormalised.
"""

from __future__ import annotations

import functools
import importlib
import pkgutil
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from edgerun.engine.sampling.params import SamplingParams


@dataclass(slots=True)
class History:
    """Ids that precede the next token.

    Attributes:
        ids: prompt and reply; the engine appends to it.
        prompt_tokens: how many of them belong to the prompt.
    """

    ids: list[int]
    prompt_tokens: int = 0


@dataclass(slots=True)
class Candidates:
    """Tokens still in play.

    Attributes:
        logits: float32 ``[n]``; a processor may change them in place.
        ids: id of each, int64 ``[n]`` increasing; None if ``logits`` covers the vocabulary.
    """

    logits: NDArray[np.float32]
    ids: NDArray[np.int64] | None = None

    def keep(self, mask: NDArray[np.bool_]) -> Candidates:
        """Returns the candidates where ``mask`` is true; order stays."""
        chosen = np.flatnonzero(mask)
        ids = chosen if self.ids is None else self.ids[chosen]
        return Candidates(self.logits[chosen], ids)

    def probabilities(self) -> NDArray[np.float32]:
        """Softmax of the logits, float32 ``[n]``."""
        weights: NDArray[np.float32] = np.exp(self.logits - self.logits.max())
        weights /= weights.sum(dtype=np.float64)
        return weights


BLOCK = 512
HEAD = 4096  # tokens to look at before looking at all

Processor: TypeAlias = Callable[[Candidates, History], Candidates]
Factory: TypeAlias = Callable[[SamplingParams], Processor | None]

_FACTORIES: dict[int, Factory] = {}


def processor(order: int) -> Callable[[Factory], Factory]:
    """Registers a factory of processors at a place in the order."""

    def register(factory: Factory) -> Factory:
        if order in _FACTORIES:
            raise ValueError(f"two sampling processors have order {order}")
        _FACTORIES[order] = factory
        return factory

    return register


@functools.cache
def factories() -> tuple[Factory, ...]:
    """Imports every file of this folder and returns the factories in order."""
    package = importlib.import_module("edgerun.engine.sampling")
    for module in pkgutil.iter_modules(package.__path__):
        importlib.import_module(f"{package.__name__}.{module.name}")
    return tuple(_FACTORIES[order] for order in sorted(_FACTORIES))


def place(weights: NDArray[np.float32], mass: float) -> int:
    """Returns the first index whose running sum exceeds ``mass``, the last one if none does.

    NumPy's cumsum adds one by one; summing blocks first and looking into a single block is fifty
    times faster for a large vocabulary.

    Args:
        weights: not negative, float32 ``[n]``, n at least 1.
        mass: in the units of the weights.
    """
    whole = len(weights) // BLOCK * BLOCK
    sums = weights[:whole].reshape(-1, BLOCK).sum(axis=1, dtype=np.float64)
    edges = np.cumsum(np.append(sums, weights[whole:].sum(dtype=np.float64)))
    block = min(int(np.searchsorted(edges, mass, side="right")), len(edges) - 1)
    before = edges[block - 1] if block else 0.0
    inside = before + np.cumsum(weights[block * BLOCK : (block + 1) * BLOCK], dtype=np.float64)
    index = block * BLOCK + int(np.searchsorted(inside, mass, side="right"))
    return min(index, len(weights) - 1)


def smallest_nucleus(weights: NDArray[np.float32], mass: float) -> float:
    """Returns the smallest weight among the fewest largest ones that sum to at least ``mass``.

    Looks at growing heads instead of sorting all: most nuclei are small.

    Args:
        weights: not negative, float32 ``[n]``.
        mass: wanted sum; more than there is gives the smallest weight.
    """
    size = len(weights)
    for head in (HEAD, 8 * HEAD, size):
        top = weights if head >= size else np.partition(weights, size - head)[size - head :]
        if head >= size or top.sum(dtype=np.float64) > mass:
            break
    ordered = np.sort(top)[::-1]
    return float(ordered[place(ordered, np.nextafter(mass, 0))])
