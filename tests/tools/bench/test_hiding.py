"""How many misses a prefetcher can hide: the replay against what can be counted by hand."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tools.bench.offload.hiding import (
    LRU,
    TRACES,
    Entry,
    OnStandin,
    Replay,
    Rule,
    Simulated,
    compared,
    steps_of,
)

ORACLE = Rule("oracle", 1)


def cycle(layers: int, experts: int, tokens: int) -> list[tuple[Entry, ...]]:
    """Every layer needs another expert at every token, which LRU never has."""
    return [((layer, token % experts),) for token in range(tokens) for layer in range(layers)]


@pytest.mark.parametrize(("compute_s", "waited_s"), [(0.5, 0.5), (1.5, 0.0)])
def test_an_oracle_of_one_layer_hides_what_is_uploaded_while_a_layer_computes(
    compute_s: float, waited_s: float
) -> None:
    steps = cycle(4, 8, 10)
    lru = Replay(steps, 8, compute_s, LRU, Simulated(), 8).run()
    assert (lru.waited, lru.uploads, lru.waited_s) == (40, 40, 40)
    assert lru.seconds == pytest.approx(40 * (1 + compute_s))
    ours = Replay(steps, 8, compute_s, ORACLE, Simulated(), 8).run()
    assert ours.uploads == 40
    # The first layer of a token is foreseen by nobody.
    assert ours.waited_s == pytest.approx(10 + 30 * waited_s)
    assert ours.waited == (10 if waited_s == 0 else 40)


def test_no_eviction_misses_less_than_beladys() -> None:
    rng = np.random.default_rng(0)
    steps = [tuple((0, int(e)) for e in rng.permutation(8)[:2]) for _ in range(300)]
    waited = [
        Replay(steps, 4, 0.0, Rule("", is_belady=is_belady), Simulated(), 8).run().waited
        for is_belady in (False, True)
    ]
    assert waited[1] < 0.75 * waited[0]


def test_ours_uploads_nothing_in_vain_where_the_link_never_idles() -> None:
    steps, experts = steps_of(sorted_traces(), 300)
    outcomes = {rule.title: outcome for rule, outcome in compared(steps, experts, 0.25, 0.02)}
    lru = outcomes.pop(LRU.title)
    for title in (each for each in outcomes if each.startswith("ours")):
        assert outcomes[title].uploads <= 1.02 * lru.uploads
        assert outcomes[title].seconds <= 1.005 * lru.seconds


def test_through_the_stand_ins_link_it_counts_the_same() -> None:
    steps = cycle(2, 4, 6)
    line = OnStandin(4e-3)
    measured = Replay(steps, 4, 8e-3, ORACLE, line, 4).run()
    line.close()
    assert measured.uploads == Replay(steps, 4, 2.0, ORACLE, Simulated(), 4).run().uploads
    assert measured.seconds >= 12 * 8e-3 + 6 * 4e-3


def sorted_traces() -> list[Path]:
    return sorted(TRACES.glob("*.trace"))[:4]
