"""The common chain of processors as one computation, in compiled code where that is there.

What a chain chooses is what its processors choose one after the other: every logit, weight and
bound has the same bits, for the exponentials are NumPy's here as there, and only the order differs
in which weights are summed in float64 (docs/adr/0042-choices-by-kernels.md). So either may choose
any token of a reply, and who has no compiled code misses nothing but speed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from edgerun.engine.chooser.compiled import SOURCE, workspace
from edgerun.engine.chooser.counts import Counts
from edgerun.engine.chooser.processor import Filter
from edgerun.kernels.choice import numbers as number
from edgerun.kernels.choice.numbers import COUNT, NUMBERS, REFUSED, TOKEN

NO_LEAST = 1.0  # in place of a logarithm where min-p does nothing
STAGES = ("biases", "penalties", "temperature", "top_k", "top_p", "min_p")
# The words of ``candidates`` that chains fill in, from the first.
LOGITS, BIASED, BIAS, BIASES, SEEN, SEEN_COUNT, SAID, COUNTS, SAID_COUNT, TOP_K, LARGEST = range(11)
WORDS = 11


@runtime_checkable
class JoiningFilter(Filter, Protocol):
    """A filter that a chain can stand for."""

    def join(self, chain: Chain) -> bool:
        """Has the chain do what ``apply`` does; False if it does not do that in this place."""


class Chain:
    """What the filters of one chooser do, in numbers."""

    def __init__(self) -> None:
        """Leaves logits as they are."""
        self._stage = -1
        numbers = np.zeros(NUMBERS, np.float64)
        numbers[[number.LEAST, number.TOP_P]] = NO_LEAST, 1
        self._words: Any = np.zeros(WORDS, np.int64).data
        self._numbers: Any = numbers.data
        self._alive: list[NDArray[np.generic]] = []  # whose addresses are among the words
        self._seen: Counts | None = None
        self._said: Counts | None = None
        self._scales = False

    @classmethod
    def at_end(
        cls, filters: Sequence[Filter], *, greedy: bool
    ) -> tuple[Sequence[Filter], Chain | None]:
        """The filters before a chain, and the chain that stands for all behind them, if any.

        A chain takes all logits: who has one must see to it that what is before it leaves none out.
        A greedy one takes the likeliest, and leaves none out itself.
        """
        for start in range(max(1, len(filters))):
            chain = cls._of(filters[start:], greedy=greedy)
            if chain is not None and (filters or not greedy):  # else NumPy is as fast
                return filters[:start], chain
        return filters, None

    @classmethod
    def _of(cls, filters: Sequence[Filter], *, greedy: bool) -> Chain | None:
        chain = cls()
        for filter_ in filters:
            if not (joins_itself(filter_) and filter_.join(chain)):  # type: ignore[attr-defined]
                return None
        chain._words[LARGEST] = greedy
        return None if greedy and chain._stage > STAGES.index("penalties") else chain

    @property
    def is_ready(self) -> bool:
        """Whether there is compiled code, for which asking counts."""
        return SOURCE.get() is not None

    def biases(self, ids: NDArray[np.int64], values: NDArray[np.float32]) -> bool:
        """Adds to the logits of single ids, each once."""
        self._alive += [ids, values]
        self._words[BIASED], self._words[BIAS] = ids.ctypes.data, values.ctypes.data
        self._words[BIASES] = len(ids)
        return self._enters("biases")

    def penalties(
        self,
        seen: Counts | None,
        said: Counts | None,
        repetition: float,
        presence: float,
        frequency: float,
    ) -> bool:
        """Penalises ids that were seen, and those that were said; None for neither."""
        self._seen, self._said = seen, said
        self._numbers[number.REPETITION] = repetition
        self._numbers[number.PRESENCE] = presence
        self._numbers[number.FREQUENCY] = frequency
        return self._enters("penalties")

    def temperature(self, divisor: float) -> bool:
        """Divides what logits are less than the largest."""
        self._numbers[number.TEMPERATURE] = divisor
        self._scales = True
        return self._enters("temperature")

    def top_k(self, count: int) -> bool:
        """Keeps so many of the largest, and those that equal the last."""
        self._words[TOP_K] = count
        return self._enters("top_k")

    def top_p(self, share: float) -> bool:
        """Keeps the fewest whose weights sum to that share."""
        self._numbers[number.TOP_P] = share
        return self._enters("top_p")

    def min_p(self, least: float) -> bool:
        """Keeps what differs from the largest by no more than this logarithm, at most 0."""
        self._numbers[number.LEAST] = least
        return self._enters("min_p")

    def _enters(self, stage: str) -> bool:
        before, self._stage = self._stage, STAGES.index(stage)
        return before < self._stage

    def choose(self, logits: NDArray[np.float32], uniform: Callable[[], float]) -> int | None:
        """Chooses the id that a random number in [0, 1) falls on, or the likeliest.

        Returns:
            None where there is no compiled code, or it has nothing to say of such logits: one is
            NaN, the largest is infinite, or an id that is penalised lies beyond them.
        """
        kernels = SOURCE.kernels
        if kernels is None or logits.dtype != np.float32 or not logits.flags.c_contiguous:
            return None
        space = workspace(len(logits))
        words, numbers, result = space.variable, space.numbers, space.result
        words[:WORDS] = self._words
        words[LOGITS] = logits.ctypes.data
        if self._seen is not None:
            words[SEEN], _, words[SEEN_COUNT] = self._seen.table
        if self._said is not None:
            words[SAID], words[COUNTS], words[SAID_COUNT] = self._said.table
        numbers[:] = self._numbers
        kernels.candidates(space.candidates, 0)
        if self._words[LARGEST]:
            return None if result[TOKEN] == REFUSED else result[TOKEN]
        count = result[COUNT]
        if count == REFUSED:
            return None
        depths, weights = space.keys if self._scales else space.depths, space.weights
        if count < space.size:
            depths, weights = depths[:count], weights[:count]
        np.exp(depths, weights)
        numbers[number.UNIFORM] = uniform()
        kernels.draw(space.draw, 0)
        return None if result[TOKEN] == REFUSED else result[TOKEN]


def joins_itself(filter_: Filter) -> bool:
    """Whether what a filter joins is what it applies: a class may have changed one of the two."""
    if not isinstance(filter_, JoiningFilter):
        return False
    definers = [
        next(owner for owner in type(filter_).__mro__ if name in vars(owner))
        for name in ("apply", "join")
    ]
    return definers[0] is definers[1]
