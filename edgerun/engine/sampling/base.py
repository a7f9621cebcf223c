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

A processor that never changes which of the candidates is the likeliest says so, with
``keeps_likeliest``: greedy choice leaves it out where no other processor follows it.
"""

from __future__ import annotations

import functools
import importlib
import pkgutil
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from edgerun.engine.sampling.leaders import leaders
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
        return self.take(np.flatnonzero(mask))

    def take(self, chosen: NDArray[np.int64]) -> Candidates:
        """Returns the candidates at ``chosen``, increasing positions."""
        return Candidates(self.logits[chosen], chosen if self.ids is None else self.ids[chosen])

    def weights(self) -> NDArray[np.float32]:
        """Probabilities up to a common factor, float32 ``[n]``, largest 1; scratch memory."""
        weights: NDArray[np.float32] = scratch("weights", len(self.logits))
        np.subtract(self.logits, self.logits.max(), out=weights)
        np.exp(weights, out=weights)
        return weights


BLOCK = 512
HEADS = (64, 1024)  # how many tokens to look at before looking at all: sorting takes its time
BINS = 2048
BINS_PER_UNIT = 64  # of a logit; the last bin takes whatever lies below
SLAB = 12_288  # keys put into bins at a time: small arrays need no fresh pages of the system

Processor: TypeAlias = Callable[[Candidates, History], Candidates]
Factory: TypeAlias = Callable[[SamplingParams], Processor | None]

_LOCAL = threading.local()
_REGISTERED: dict[int, Registered] = {}


@dataclass(frozen=True, slots=True)
class Registered:
    """A factory of processors.

    Attributes:
        make: the factory.
        keeps_likeliest: its processors never change which candidate is the likeliest.
    """

    make: Factory
    keeps_likeliest: bool


def processor(order: int, *, keeps_likeliest: bool = False) -> Callable[[Factory], Factory]:
    """Registers a factory of processors at a place in the order; see above."""

    def register(factory: Factory) -> Factory:
        if order in _REGISTERED:
            raise ValueError(f"two sampling processors have order {order}")
        _REGISTERED[order] = Registered(factory, keeps_likeliest)
        return factory

    return register


@functools.cache
def registered() -> tuple[Registered, ...]:
    """Imports every file of this folder; returns the factories in order."""
    package = importlib.import_module("edgerun.engine.sampling")
    for module in pkgutil.iter_modules(package.__path__):
        importlib.import_module(f"{package.__name__}.{module.name}")
    return tuple(entry for _, entry in sorted(_REGISTERED.items()))


def place(weights: NDArray[np.float32], mass: float) -> int:
    """Returns the first index whose running sum exceeds ``mass``, the last one if none does.

    NumPy's cumsum adds one by one; summing blocks first and looking into a single block is fifty
    times faster for a large vocabulary.

    Args:
        weights: not negative, float32 ``[n]``, n at least 1.
        mass: in the units of the weights.
    """
    block, before = 0, 0.0
    if len(weights) > BLOCK:
        whole = len(weights) // BLOCK * BLOCK
        sums = weights[:whole].reshape(-1, BLOCK).sum(axis=1, dtype=np.float64)
        edges = np.cumsum(np.append(sums, weights[whole:].sum(dtype=np.float64)))
        block = min(int(edges.searchsorted(mass, side="right")), len(edges) - 1)
        before = edges[block - 1] if block else 0.0
    inside = before + np.cumsum(weights[block * BLOCK : (block + 1) * BLOCK], dtype=np.float64)
    index = block * BLOCK + int(inside.searchsorted(mass, side="right"))
    return min(index, len(weights) - 1)


def scratch(name: str, size: int, dtype: str = "f4") -> NDArray[Any]:
    """An uninitialised array that holds until this thread asks for the same name again.

    Fresh arrays as long as a large vocabulary would take their pages from the system each time,
    which takes longer than the arithmetic.
    """
    kept: dict[str, NDArray[Any]] = _LOCAL.__dict__
    if name not in kept or len(kept[name]) < size:
        kept[name] = np.empty(size, dtype)
    return kept[name][:size]


def last_of_fewest(
    keys: NDArray[np.float32], weights: NDArray[np.float32], mass: float
) -> np.float32:
    """Returns the smallest key among the fewest largest ones whose weights sum to ``mass``.

    Most such sets are small, so a few leaders are tried first, then more. Otherwise weights are
    summed by bins of keys, and only the bin in which the sum is reached gets sorted. Sums are
    float64, so that the result does not depend on the way unless two sets differ by less than its
    precision.

    Args:
        keys: what to order by, float32 ``[n]``, n at least 1; no NaN, the largest finite.
        weights: not negative, float32 ``[n]``.
        mass: wanted sum; more than there is gives the smallest key.
    """
    for head in HEADS:
        chosen = leaders(keys, head)
        if len(chosen) == len(keys) or weights[chosen].sum(dtype=np.float64) >= mass:
            break
    else:
        chosen, mass = _reaching_bin(keys, weights, mass)
    order = chosen[np.argsort(-keys[chosen])]
    sums = np.cumsum(weights[order], dtype=np.float64)
    last: np.float32 = keys[order[min(int(np.searchsorted(sums, mass)), len(order) - 1)]]
    return last


def _reaching_bin(
    keys: NDArray[np.float32], weights: NDArray[np.float32], mass: float
) -> tuple[NDArray[np.int64], float]:
    """Positions in the bin where the sum of weights reaches ``mass``, and what is left for it."""
    bins, sums, top = scratch("bins", len(keys), "u2"), np.zeros(BINS), keys.max()
    for start in range(0, len(keys), SLAB):
        part = slice(start, start + SLAB)
        depth = top - keys[part]
        depth *= np.float32(BINS_PER_UNIT)
        np.minimum(depth, np.float32(BINS - 1), out=depth)
        bins[part] = depth
        sums += np.bincount(depth.astype(np.intp), weights[part], BINS)
    edges = np.cumsum(sums)
    reaching = min(int(np.searchsorted(edges, mass)), int(bins.max()))
    before = float(edges[reaching - 1]) if reaching else 0.0
    return np.flatnonzero(bins == reaching), mass - before
