"""A model on a machine, token by token and layer by layer, from a trace of its experts.

Uploads pass through slots of their own, so that a layer may use more experts than the device has
room for; afterwards as many of them stay as there is room.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from edgerun.errors import InputError
from edgerun.offload.cache import ExpertCache, Step
from edgerun.offload.policies.registry import policies
from edgerun.offload.schedule import NANOSECONDS, WEIGHT_SUM, Scheduler, bound
from edgerun.offload.trace_file import NO_EXPERT, Trace
from tools.bench.offload.machine import UPLOAD, Division, play
from tools.bench.offload.prefetch import Prefetcher
from tools.bench.offload.profile import F64, Speeds
from tools.bench.offload.rules import RULES

# Which experts stay on the device: by a policy, or those that were used most before.
POLICIES = {"upload all": "lru", "fetch ratio": "lru", "HybriMoE": "mrs", "edgerun": "lrfu"}
WHOLE = 1 - 1e-9


@dataclass
class Outcome:
    """What a rule comes to.

    Attributes:
        seconds: simulated, of all layers and what is between them.
        bound_s: the same with the bound of every layer in place of its time.
        experts: that had rows, counted by layer.
        hits: of these, on the device when they were wanted.
        waited: uploads that a layer waited for.
        link_s: seconds that the link was busy.
        recall: of guesses, where experts were prefetched.
    """

    seconds: float = 0.0
    bound_s: float = 0.0
    experts: int = 0
    hits: int = 0
    waited: int = 0
    link_s: float = 0.0
    recall: float = 0.0


@dataclass(frozen=True)
class Batch:
    """What a layer needs for some tokens: a step, and the rows of each of its experts."""

    step: Step
    rows: NDArray[np.int64]


def batches(trace: Trace, place: int, rows: int) -> Iterator[Batch]:
    """What a layer of a trace needs, so many tokens at a time."""
    for start in range(0, trace.tokens - rows + 1, rows):
        choices = trace.choices[start : start + rows, place].reshape(-1)
        choices = choices[choices["expert"] != NO_EXPERT]
        experts, counts = np.unique(choices["expert"], return_counts=True)
        scores = np.zeros(trace.experts)
        np.maximum.at(scores, choices["expert"], choices["weight"].astype(np.float64))
        step = Step(place, tuple(experts.tolist()), tuple(scores[experts].tolist()))
        yield Batch(step, counts.astype(np.int64))


@dataclass
class Simulation:
    """One rule on one machine; see ``simulate``."""

    speeds: Speeds
    rule: str
    slots: int
    prefetcher: Prefetcher | None = None
    outcome: Outcome = field(default_factory=Outcome)
    caches: dict[int, ExpertCache] = field(default_factory=dict)
    pinned: dict[int, frozenset[int]] = field(default_factory=dict)

    def warm(self, layers: Sequence[Sequence[Batch]]) -> None:
        """Fills the device's memory with what was used most before, which takes no time."""
        for place, steps in enumerate(layers):
            uses = Counter(expert for batch in steps for expert in batch.step.experts)
            self.pinned[place] = frozenset(expert for expert, _ in uses.most_common(self.slots))
            if self.rule in POLICIES:
                cache = self.caches[place] = ExpertCache(
                    self.slots, policies()[POLICIES[self.rule]]()
                )
                for batch in steps:
                    cache.admit(batch.step, ())
                for expert in self.pinned[place]:
                    cache.exchange((place, expert))

    def resident(self, place: int) -> frozenset[int]:
        """Experts of a layer on the device."""
        if place not in self.caches:
            return self.pinned[place]
        return frozenset(expert for _, expert in self.caches[place].resident)

    def layer(self, batch: Batch, later: Sequence[Batch], tokens: int) -> None:
        """Computes a layer, and uploads for those after it."""
        place, experts = batch.step.layer, np.array(batch.step.experts)
        there = set(self.resident(place))
        costs = self.speeds.costs(batch.rows, np.isin(experts, list(there)))
        if self.prefetcher is not None:
            for index, expert in enumerate(experts.tolist()):
                if costs[index, UPLOAD] > 0:
                    left = self.prefetcher.remaining(place, expert, float(costs[index, UPLOAD]))
                    costs[index, UPLOAD] = left
            there |= self.prefetcher.take(place, batch.step.experts)
        hits = int(np.count_nonzero(costs[:, UPLOAD] == 0))
        division = self.divide(costs)
        line = play(self.varied(costs), division)
        between = self.speeds.between_s(tokens)
        self._count(costs, line.makespan_s + between, hits, between)
        self.outcome.waited += sum(int(costs[index, UPLOAD] > 0) for index, _ in division.device)
        self.outcome.link_s += line.busy_s[UPLOAD]
        if place in self.caches:
            self.caches[place].admit(batch.step, self._to_stay(experts, division, there))
        if self.prefetcher is not None:
            self._look_ahead(later)
            everything = line.makespan_s + between
            self.prefetcher.idle(everything - line.busy_s[UPLOAD], everything)

    def divide(self, costs: F64) -> Division:
        """What each resource is to do."""
        return RULES[self.rule](costs, len(costs))

    def varied(self, costs: F64) -> F64:
        """What experts cost in this call, of which a rule sees ``costs``: the same."""
        return costs

    def _to_stay(
        self, experts: NDArray[np.int64], division: Division, there: set[int]
    ) -> Sequence[int]:
        """Experts that are on the device as a whole, as many as there are slots."""
        whole = [int(experts[index]) for index, share in division.device if share >= WHOLE]
        here = [expert for expert in experts.tolist() if expert in there]
        return list(dict.fromkeys([*here, *whole]))[: self.slots]

    def _count(self, costs: F64, seconds: float, hits: int, between: float) -> None:
        outcome = self.outcome
        outcome.seconds += seconds
        outcome.experts += len(costs)
        outcome.hits += hits
        weights = _SCHEDULER(*costs.T).weights
        nanoseconds = np.floor(costs * NANOSECONDS).astype(np.int64)
        outcome.bound_s += between + bound(nanoseconds, weights) / WEIGHT_SUM / NANOSECONDS

    def _look_ahead(self, later: Sequence[Batch]) -> None:
        assert self.prefetcher is not None
        for distance, batch in enumerate(later[: len(self.prefetcher.recall)], 1):
            place = batch.step.layer
            truth, count = batch.step.experts, self.speeds.model.experts
            guess = self.prefetcher.guess(place, distance, truth, count)
            missing = [expert for expert in guess if expert not in self.resident(place)]
            upload_s = self.speeds.costs(np.ones(1, np.int64), np.zeros(1, np.bool_))[0, UPLOAD]
            self.prefetcher.want(place, missing, float(upload_s))


_SCHEDULER = Scheduler(1 << 11)


def simulate(
    speeds: Speeds,
    trace: Trace,
    rule: str,
    share: float,
    *,
    rows: int = 1,
    warm: int = 128,
    recall: Sequence[float] = (),
    seed: int = 0,
) -> Outcome:
    """Lets a rule divide every layer of a trace.

    Args:
        speeds: of a model on a machine.
        trace: of the model's experts; other layers of the model are like those in it.
        rule: its name in ``rules.py``.
        share: of each layer's experts that the device has room for.
        rows: tokens that go through a layer at once.
        warm: tokens that fill the device's memory before time counts.
        recall: of guesses about the next layers; empty for none.
        seed: of guesses.

    Raises:
        InputError: the trace is too short, or there is no room for an expert.
    """
    slots = round(share * trace.experts)
    if slots < 1 or trace.tokens < warm + rows:
        raise InputError(
            f"a trace of {trace.tokens} tokens and room for {slots} experts; expected more than "
            f"{warm + rows - 1} tokens and room for 1 expert or more"
        )
    guesses = None
    if recall:
        rng = np.random.default_rng(seed)
        guesses = Prefetcher(recall, 2 * trace.top_k, rng)
    simulation = Simulation(speeds, rule, slots, guesses)
    layers = [list(batches(trace, place, 1))[:warm] for place in range(len(trace.layers))]
    simulation.warm(layers)
    timed = _after(trace, warm)
    by_layer = [list(batches(timed, place, rows)) for place in range(len(trace.layers))]
    for step in zip(*by_layer, strict=True):
        for place, batch in enumerate(step):
            simulation.layer(batch, step[place + 1 :], rows)
    outcome = simulation.outcome
    if guesses is not None:
        outcome.link_s += guesses.uploaded_s
        outcome.recall = guesses.right / max(1, guesses.guessed)
    return outcome


def _after(trace: Trace, tokens: int) -> Trace:
    """A trace without its first tokens."""
    choices = trace.choices[tokens:]
    return Trace(trace.model, trace.layers, trace.experts, 0, choices)
