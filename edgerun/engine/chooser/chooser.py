"""Chooses the tokens of one sequence, from logits."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np
from numpy.typing import NDArray

from edgerun.engine.chooser.candidates import Candidates, check_highest, likeliest
from edgerun.engine.chooser.chain import Chain
from edgerun.engine.chooser.params import SamplingParams
from edgerun.engine.chooser.processor import AdjustingFilter, EndingFilter, Filter, Processor
from edgerun.engine.chooser.randomness import Uniform, uniform
from edgerun.engine.chooser.selection import place, scratch
from edgerun.errors import ChooserError
from edgerun.state import Adjust


@dataclass(frozen=True, slots=True)
class Distribution:
    """How likely each token is to be drawn.

    Attributes:
        ids: tokens that may be drawn, int64 ``[n]`` increasing, n at least 1.
        probabilities: float64 ``[n]``; they sum to 1.
    """

    ids: NDArray[np.int64]
    probabilities: NDArray[np.float64]


class Chooser:
    """Chooses the tokens of one sequence.

    ``distribution`` and ``draw`` change nothing; ``accept`` appends a token, and
    ``undo`` takes some back. What is drawn depends on the logits, on the ids before it, and on the
    seed and the position, never on what was drawn and not accepted.

    Logits are float32 ``[vocab]`` and left unchanged.

    Raises:
        ChooserError: from every call that takes logits, if none is finite or one is NaN, if a
            processor fails, or if none leaves a token that could be chosen.

    Example:
        >>> chooser = Chooser(SamplingParams(temperature=0), prompt=[1, 2], vocab_size=3)
        >>> chooser.draw(np.array([0.1, 2.0, 0.3], np.float32))
        1
    """

    def __init__(
        self,
        params: SamplingParams,
        prompt: Sequence[int],
        vocab_size: int,
        uniform_at: Uniform | None = None,
        stop_ids: Iterable[int] = (),
    ) -> None:
        """Begins behind a prompt.

        Args:
            params: what the caller asks for.
            prompt: ids before the first token to choose.
            vocab_size: ids are below this.
            uniform_at: random numbers in [0, 1) by position; None takes those of the seed.
            stop_ids: ids that end the reply.

        Raises:
            SamplingError: a value does not suit a vocabulary of this size.
        """
        self._greedy = params.is_greedy
        self._processors = _needed(params.processors, greedy=self._greedy)
        self._prompt, self._prompt_tokens, self._vocab_size = prompt, len(prompt), vocab_size
        self._uniform_at, self._stop_ids = uniform_at or uniform(params.seed), stop_ids
        self._begin([])

    def _begin(self, accepted: list[int]) -> None:
        """Begins behind the prompt, and accepts tokens."""
        prompt = self._prompt[: self._prompt_tokens]  # a list that grows with the reply
        filters = [each.begin(prompt, self._vocab_size) for each in self._processors]
        self._ending = [each for each in filters if isinstance(each, EndingFilter)]
        for ending in self._ending:
            ending.end_with(self._stop_ids)
        for filter_, id_ in product(filters, accepted):
            filter_.accept(id_)
        only = filters[0] if len(filters) == 1 else None
        self.adjust: Adjust | None = None
        if isinstance(only, AdjustingFilter):
            self.adjust = only.adjustment
        self.takes_largest = self._greedy and (not filters or self.adjust is not None)
        self._before, self._chain = Chain.at_end(filters, greedy=self._greedy)
        self._filters: list[Filter] = filters
        self._accepted, self._is_torn = accepted, False

    @property
    def position(self) -> int:
        """Of the next token: how many ids are before it."""
        return self._prompt_tokens + len(self._accepted)

    @property
    def is_complete(self) -> bool:
        """Whether no token may follow what was accepted."""
        return any(filter_.is_complete() for filter_ in self._ending)

    def distribution(self, logits: NDArray[np.float32]) -> Distribution:
        """Returns the distribution from which ``draw`` draws."""
        if self._greedy:
            return Distribution(np.array([self._likeliest(logits)]), np.ones(1))
        candidates = self._filtered(logits)
        weights = candidates.weights().astype(np.float64)
        ids = np.arange(len(weights)) if candidates.ids is None else candidates.ids
        possible = weights > 0
        return Distribution(ids[possible], weights[possible] / weights.sum())

    def draw(self, logits: NDArray[np.float32]) -> int:
        """Chooses a token."""
        id_ = None if self._chain is None else self._by_chain(self._chain, logits)
        if id_ is not None:
            return id_
        if self._greedy:
            return self._likeliest(logits)
        candidates = self._filtered(logits)
        weights = candidates.weights()
        mass = self._uniform() * float(weights.sum(dtype=np.float64))
        index = place(weights, mass)
        if weights[index] == 0:  # rounding carried the sum past the last possible token
            index = int(np.flatnonzero(weights)[-1])
        return candidates.id_at(index)

    def accept(self, id_: int) -> None:
        """Appends a token, whoever chose it.

        Raises:
            ChooserError: a processor fails.
        """
        self._is_torn = True
        self._accepted.append(id_)
        for filter_ in self._filters:
            try:
                filter_.accept(id_)
            except ChooserError:
                raise
            except Exception as error:
                raise _failure(filter_, error) from error
        self._is_torn = False

    def undo(self, count: int) -> None:
        """Takes back the last tokens that were accepted; all is as it was before them.

        Raises:
            ValueError: fewer were accepted.
        """
        if not 0 <= count <= len(self._accepted):
            raise ValueError(f"{count} tokens to take back of {len(self._accepted)}")
        self._is_torn = count > 0
        for _ in range(count):
            id_ = self._accepted.pop()
            for filter_ in self._filters:
                filter_.undo(id_)
        self._is_torn = False

    def recover(self, length: int) -> None:
        """Is behind ``length`` ids at most, wherever Ctrl-C came: also inside of a filter."""
        if self._is_torn:
            self._begin(self._accepted[: max(0, length - self._prompt_tokens)])
        else:
            self.undo(max(0, self.position - length))

    def _uniform(self) -> float:
        """The random number of the next token."""
        return self._uniform_at(self.position)

    def _by_chain(self, chain: Chain, logits: NDArray[np.float32]) -> int | None:
        """What the chain chooses of what the filters before it leave; None if it does not."""
        if not chain.is_ready:
            return None
        candidates = self._filtered(logits, self._before)
        if candidates.ids is not None:  # and it will be so next time
            self._chain = None
            return None
        return chain.choose(candidates.logits, self._uniform)

    def _likeliest(self, logits: NDArray[np.float32]) -> int:
        return self._filtered(logits).likeliest() if self._filters else likeliest(logits)

    def _filtered(
        self, logits: NDArray[np.float32], filters: Sequence[Filter] | None = None
    ) -> Candidates:
        """What the filters leave, all of them or some; without any, what is there."""
        filters = self._filters if filters is None else filters
        if not filters:
            return Candidates(logits)
        # max propagates NaN, so one pass finds NaN, infinity and "all tokens impossible".
        check_highest(logits.max())
        copied = scratch("logits", len(logits))
        copied[:] = logits
        candidates = Candidates(copied)
        for filter_ in filters:
            candidates = _applied(filter_, candidates)
        return candidates


def _needed(processors: Sequence[Processor], *, greedy: bool) -> list[Processor]:
    """Processors that do something.

    Greedy choice needs nothing that keeps the likeliest token, unless something follows that may
    change it: typical-p sees what top-k left.
    """
    active = [processor for processor in processors if processor.is_active]
    while greedy and active and active[-1].keeps_likeliest:
        active.pop()
    return active


def _applied(filter_: Filter, candidates: Candidates) -> Candidates:
    """What a processor leaves; whatever goes wrong in it ends this sequence alone."""
    try:
        left = filter_.apply(candidates)
    except ChooserError:
        raise
    except Exception as error:
        raise _failure(filter_, error) from error
    if not len(left.logits):
        raise ChooserError(
            f"the sampling processor {_name(filter_)} left no token to choose from: ask for less"
        )
    return left


def _failure(filter_: Filter, error: Exception) -> ChooserError:
    return ChooserError(
        f"the sampling processor {_name(filter_)} failed: {type(error).__name__}: {error}"
    )


def _name(filter_: Filter) -> str:
    return type(filter_).__name__
