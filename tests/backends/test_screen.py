"""The screened head gives the ids and logits of the full one, or steps aside."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgerun.backends import CompileOptions, Phase, make_backend
from edgerun.backends.cpu.screen_builder import expected_share
from edgerun.backends.cpu.screen_program import ScreenProgram
from edgerun.backends.cpu.screen_promise import screen_promise
from edgerun.backends.cpu.screen_weights import make_screen
from edgerun.backends.cpu.screened import ScreenedExecutable
from edgerun.engine.engine import Engine
from edgerun.engine.sampling import History, SamplingParams, make_leading, make_sampler
from edgerun.engine.session import Session
from edgerun.formats import format_named
from edgerun.formats.base import PackedWeight
from edgerun.graph.ir import Node
from edgerun.kernels import reference
from edgerun.kernels.leaders import leaders
from edgerun.loading import resolve
from edgerun.model.bundle import open_bundle
from edgerun.model.tokenizer import Tokenizer
from edgerun.plan import compile_plan, make_plan
from edgerun.state import Batch, CacheSpec, KVCache
from tests.backends.heads import (
    POLICY,
    Heads,
    head_graph,
    heads,
    leading_set,
    likely_states,
    random_head,
)

RECORDED = 10_000
WINDOW = 128
SAMPLES = Path(__file__).parents[2] / "models" / "default" / "samples.md"


@pytest.fixture(scope="module")
def recorded() -> tuple[PackedWeight, np.ndarray]:
    """The default model's head, and hidden states of text that it wrote."""
    bundle = open_bundle(resolve(None))
    graph, config = bundle.graph, bundle.config
    head = graph.nodes[-1]
    body = graph.with_nodes(graph.nodes[:-1])
    body.outputs = [head.inputs[0]]
    tokenizer = Tokenizer.from_json(bundle.read_text("tokenizer.json"), {})
    ids = list(tokenizer.encode(SAMPLES.read_text(encoding="utf-8")))
    spec = CacheSpec(config.num_layers, config.num_kv_heads, config.head_dim, "fp16")
    backend, cache = make_backend("cpu"), KVCache(spec, WINDOW)
    program = backend.compile(body, Phase.PREFILL, CompileOptions(1, WINDOW, spec))
    windows = -(-RECORDED // WINDOW)
    apart = max(1, (len(ids) - WINDOW) // windows)
    found = []
    for start in range(0, windows * apart, apart):
        sequence = cache.open()
        cache.reserve(sequence, WINDOW)
        batch = Batch.of(ids[start : start + WINDOW], 0, sequence, logits="all")
        found.append(program(batch, cache)[head.inputs[0]].copy())
        cache.close(sequence)
    program.close()
    backend.close()
    weight = graph.constants[head.inputs[1]]
    assert isinstance(weight, PackedWeight)
    return weight, np.concatenate(found)[:RECORDED]


COUNTS = (2, 40, 256)  # of leading logits, beside the first alone


def check_leading(pair: Heads, state: np.ndarray, counts: Iterable[int]) -> None:
    """The greedy choice, and the leading sets with their values, are those of all logits."""
    exact = pair.exact(state)
    assert np.argmax(pair.screen(state, 1)) == np.argmax(exact)
    for count in counts:
        assert leading_set(pair.screen(state, count), count) == leading_set(exact, count)


def test_ten_thousand_states_give_the_ids_of_the_full_head(
    recorded: tuple[PackedWeight, np.ndarray],
) -> None:
    """The greedy one for all; leading sets for a seeded share, in the next test for all."""
    weight, states = recorded
    rng = np.random.default_rng(0)
    with heads(weight) as pair:
        pair.learn(states[::150])
        for state in states:
            share = rng.random() < 0.2
            check_leading(pair, state, [rng.choice(COUNTS)] if share else [])
        record = pair.screened.record
    assert len(states) == RECORDED
    assert record.proved > RECORDED  # almost all greedy ones, and others
    assert not record.off


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_ten_thousand_states_give_every_leading_set_of_the_full_head(
    recorded: tuple[PackedWeight, np.ndarray],
) -> None:
    weight, states = recorded
    with heads(weight) as pair:
        pair.learn(states[::150])
        for state in states:
            check_leading(pair, state, COUNTS)
        record = pair.screened.record
    assert len(states) == RECORDED
    # 256 of 4096 leave more than a quarter of the rows, as a rule, and take the full head.
    assert record.proved > 2.5 * RECORDED
    assert not record.off


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_ten_thousand_made_up_states_of_a_large_vocabulary() -> None:
    """A head of a size where a screen pays; the sizes of the leading sets take turns."""
    weight = random_head(65_536, 512)
    states = likely_states(weight, RECORDED + POLICY.states, seed=4)
    with heads(weight, threads=2) as pair:
        pair.learn(states[RECORDED:])
        for index, state in enumerate(states[:RECORDED]):
            check_leading(pair, state, [COUNTS[index % len(COUNTS)]])
        record = pair.screened.record
    assert record.proved > RECORDED
    assert not record.off


SAMPLERS: list[dict[str, Any]] = [
    {"temperature": 0},
    {"temperature": 0, "repetition_penalty": 1.3},
    {"temperature": 0, "top_p": 0.9, "min_p": 0.1},
    {"temperature": 0, "typical_p": 0.5, "top_k": 9},
    {"top_k": 40, "top_p": 0.9, "temperature": 0.7},
    {"top_k": 1, "presence_penalty": 1.5, "frequency_penalty": 0.5},
    {"top_k": 256, "typical_p": 0.8, "temperature": 1.7},
    {"top_k": 7, "logit_bias": {5: 9.0, 11: -30.0, 4000: 3.5}, "temperature": 1e-5},
]


@pytest.mark.parametrize("params", SAMPLERS, ids=str)
def test_samplers_choose_what_they_choose_with_all_logits(
    params: dict[str, Any], recorded: tuple[PackedWeight, np.ndarray]
) -> None:
    weight, states = recorded
    asked = SamplingParams(seed=3, **params)
    leading = make_leading(asked)
    assert leading is not None
    left, right = make_sampler(asked), make_sampler(asked)
    with heads(weight) as pair:
        pair.learn(states[:100])
        history, other = History(list(range(0, 400, 7)), 20), History(list(range(0, 400, 7)), 20)
        for state in states[1000:1200]:
            wanted = leading(history)
            history.ids.append(left(pair.screen(state, wanted.count, wanted.ids), history))
            other.ids.append(right(pair.exact(state), other))
        assert history.ids == other.ids
        assert pair.screened.record.proved > 20  # 256 leading ones are many of 4096


@pytest.mark.parametrize("params", [SAMPLERS[1], SAMPLERS[4]], ids=str)
def test_replies_are_the_same_with_a_screened_head(params: dict[str, Any]) -> None:
    bundle = open_bundle(resolve(None))
    config = bundle.config
    spec = CacheSpec(config.num_layers, config.num_kv_heads, config.head_dim, "fp16")
    asked = SamplingParams(max_tokens=POLICY.states + 60, ignore_eos=True, seed=5, **params)
    replies = []
    for screen in (False, True):
        backends = [make_backend("cpu")]
        prefill, decode = CompileOptions(1, 16, spec), CompileOptions(1, 1, spec, screen=screen)
        options = {Phase.PREFILL: prefill, Phase.DECODE: decode}
        executables = compile_plan(make_plan(bundle.graph, backends), backends, options)
        program = executables[Phase.DECODE]
        if isinstance(program, ScreenedExecutable):
            program.follow(POLICY)
        engine = Engine(executables, config.vocab_size)
        session = Session(KVCache(spec, 256))
        replies.append([step.id for step in engine.generate(session, [5, 6, 7], asked)])
        assert not screen or program.record.proved > 30
        engine.close()
        backends[0].close()
    assert replies[0] == replies[1]


@pytest.mark.parametrize("block", [32, 128])
@pytest.mark.parametrize("directions", [0, 16, 64])
def test_no_score_is_farther_from_the_exact_value_than_its_bound(
    block: int, directions: int
) -> None:
    weight = random_head(700, 1024, block)
    states = np.concatenate(
        [likely_states(weight, 40), np.random.default_rng(5).standard_normal((20, 1024)) * 1e3]
    ).astype(np.float32)
    screen = make_screen(weight, states[:30], directions)
    for state in states:
        x = reference.rounded_activations(state[None], "int8_block", block)[0]
        z, reach, rounding = screen.bound.project(x)
        exact = reference.dense(weight).astype(np.float64) @ x
        scores = reference.dense(screen.coarse).astype(np.float64) @ x
        if screen.detail is not None:
            rounded = reference.rounded_activations(z[None], "int8_block", directions)[0]
            scores += reference.dense(screen.detail).astype(np.float64) @ rounded
        assert (np.abs(exact - scores) <= screen.bound.spread * reach + rounding).all()


def test_directions_make_the_bound_of_likely_states_smaller() -> None:
    weight = random_head(500, 1024)
    states = likely_states(weight, 200)
    reach = [make_screen(weight, states, m).bound.project(states[0])[1] for m in (0, 64)]
    assert reach[1] < 0.75 * reach[0]


@pytest.fixture(scope="module")
def tied() -> PackedWeight:
    """A head with equal rows, rows that differ by one code, and a row of zeros."""
    weight = random_head(3000, 512)
    codes, scales = weight.codes.copy(), weight.scales.copy()
    codes[1000:1010], scales[1000:1010] = codes[7], scales[7]
    codes[2000:2010], scales[2000:2010] = codes[7], scales[7]
    codes[2000:2010, 3, np.arange(10)] += 1
    codes[5] = 128
    return replace(weight, codes=codes, scales=scales)


def test_ties_and_near_ties_come_out_as_in_the_full_head(tied: PackedWeight) -> None:
    row = format_named("int8").unpack(tied)[7]
    states = likely_states(tied, 80)
    rng = np.random.default_rng(3)
    with heads(tied) as pair:
        pair.learn(states)
        for size in (1e-20, 1e-3, 1.0, 1e6):
            for state in row * size * (1 + rng.standard_normal((5, 512)) * 0.2):
                exact = pair.exact(state.astype(np.float32))
                for count in (1, 3, 10, 15, 30):
                    found = pair.screen(state.astype(np.float32), count)
                    assert leading_set(found, count) == leading_set(exact, count)
        assert pair.screened.record.proved > 60


@pytest.mark.parametrize("value", [0, 1e36, 1e-43, np.inf])
@pytest.mark.parametrize("where", [slice(None), slice(3, 4)], ids=["everywhere", "once"])
def test_states_of_which_nothing_can_be_proved_take_the_full_head(
    value: float, where: slice, tied: PackedWeight
) -> None:
    states = likely_states(tied, 81)
    state = states[80] if value > 1 else np.zeros(512, np.float32)
    state[where] = value
    with heads(tied) as pair:
        pair.learn(states[:80])
        proved = pair.screened.record.proved
        np.testing.assert_array_equal(pair.screen(state, 1), pair.exact(state))
        assert pair.screened.record.proved == proved
        assert pair.screened.record.fell_back > 0


@pytest.mark.parametrize("ids", [[3000], [-1], list(range(2000))])
def test_ids_outside_the_head_and_too_many_ids_take_the_full_head(
    ids: list[int], tied: PackedWeight
) -> None:
    states = likely_states(tied, 81)
    with heads(tied) as pair:
        pair.learn(states[:80])
        found = pair.screen(states[80], 1, np.array(ids))
        np.testing.assert_array_equal(found, pair.exact(states[80]))


def test_a_screen_that_would_leave_too_many_rows_is_not_built(tied: PackedWeight) -> None:
    states = np.random.default_rng(9).standard_normal((70, 512)).astype(np.float32)
    with heads(tied) as pair:
        pair.learn(states, 700)
        assert "would have to be computed" in pair.screened.record.off
        np.testing.assert_array_equal(pair.screen(states[0], 1), pair.exact(states[0]))


def test_the_expected_share_is_near_the_real_one(
    recorded: tuple[PackedWeight, np.ndarray],
) -> None:
    weight, states = recorded
    with heads(weight) as pair:
        pair.learn(states[:100])
        for state in states[5000:5200]:
            pair.screen(state, 40)
        record = pair.screened.record
        real = record.rows / record.proved / weight.shape[0]
        least = [np.partition(pair.exact(state), -40)[-40] for state in states[5000:5032]]
    share = expected_share(weight, states[4900:5032], np.array(least, np.float32), 0)
    assert share == pytest.approx(real, rel=0.3)


def test_a_screen_that_does_not_pay_is_given_up(tied: PackedWeight) -> None:
    states = likely_states(tied, 100)
    with heads(tied, replace(POLICY, trial=8, min_gain=10.0)) as pair:
        pair.learn(states)
        assert "ms a token" in pair.screened.record.off
        np.testing.assert_array_equal(pair.screen(states[0], 1), pair.exact(states[0]))


def test_a_screen_whose_values_differ_is_not_used(
    tied: PackedWeight, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ScreenProgram, "agrees", lambda self, exact: False)
    with heads(tied) as pair:
        pair.learn(likely_states(tied, 80))
        assert "differ" in pair.screened.record.off


def test_a_screen_is_built_in_the_background(tied: PackedWeight) -> None:
    states = likely_states(tied, 70)
    with heads(tied, replace(POLICY, background=True)) as pair:
        for state in np.tile(states, (200, 1)):
            pair.screen(state, 1)
            if pair.screened.record.proved:
                break
        assert pair.screened.record.proved


def test_heads_with_nothing_to_gain_are_left_alone() -> None:
    coarse = format_named("int4").pack(np.ones((4096, 512), np.float32), 32)
    assert screen_promise(head_graph(coarse)) is None
    graph = head_graph(random_head(512, 256, 128))
    assert (promise := screen_promise(graph)) is not None
    assert promise.worth
    body = Node("linear", "body", ("state", "large"), ("out",), {"activations": "int8_block"})
    graph = replace(graph, nodes=[body, *graph.nodes])
    graph.constants["large"] = random_head(8192, 256)
    assert (promise := screen_promise(graph)) is not None
    assert not promise.worth
    assert str(promise) == "it could save only 3% of the bytes of a step"


def test_the_plan_mentions_what_a_screened_head_could_save() -> None:
    graph = open_bundle(resolve(None)).graph
    rows = make_plan(graph, [make_backend("cpu")]).explain()
    said = [row for row in rows if row.backend == "screened head"]
    assert [row.phase for row in said] == ["decode"]
    assert "instead of 1.1 MB a token" in said[0].reason
    assert "EDGERUN_SCREEN=1" in said[0].reason


@pytest.mark.parametrize("size", [1, 5, 1000, 5000, 30_000])
@pytest.mark.parametrize("count", [1, 40, 256, 6000])
def test_leaders_are_all_that_reach_some_key_and_enough(size: int, count: int) -> None:
    keys = np.random.default_rng(size).integers(-50, 50, size).astype(np.float32)
    keys[::7] = -np.inf
    found = leaders(keys, count)
    assert len(found) >= min(count, size)
    assert set(np.flatnonzero(keys >= keys[found].min())) == set(found)
