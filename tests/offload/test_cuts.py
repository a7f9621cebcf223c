"""Experts that are cut by columns: every element is what it would be without a cut."""

from __future__ import annotations

import numpy as np
import pytest

from edgerun.backends.base import CompileOptions
from edgerun.backends.cpu.experts.layout import FloatForm, SlotLayout
from edgerun.kernels.experts.division import UPLOAD
from edgerun.offload.estimates import Estimate
from edgerun.offload.places import one_hot
from edgerun.offload.schedule import NANOSECONDS, Scheduler, makespan
from edgerun.offload.sharing.cut_expert import CutExpert
from edgerun.offload.sharing.cuts import cut_of, cut_program, cuts_one, parts_of, with_cut
from edgerun.offload.sharing.device import FIRST, SECOND
from edgerun.offload.sharing.executable import SharedLayer
from edgerun.offload.sharing.trials import Trials
from edgerun.offload.standin import StandinBackend
from edgerun.state import Batch, SequenceStore
from tests.support.experts import EXPERTS, STATES, Case, graph_of, layer_of, normal
from tests.support.sharing import logits_of, standin

PARTS, TOKENS = 8, 24


@pytest.mark.parametrize(
    "case",
    [
        Case("int4", "int8_block", 200, 136, rows=3, biased=True, activation="clamped_swiglu"),
        Case("ternary", "int8_row", 256, 192, rows=5),
        Case("int4_asym", "float", 128, 256),
    ],
    ids=lambda case: f"{case.weights}-{case.activations}",
)
def test_parts_of_both_products_are_those_of_the_whole(case: Case) -> None:
    """Wherever an expert is cut; the last panels are not whole ones."""
    layer, cpu = layer_of(case)
    cache, experts = SequenceStore(STATES, 1), np.arange(case.rows) % EXPERTS
    x = normal((case.rows, case.hidden), 3)
    expected = layer.multiply(x, experts, cache).copy()
    parts = parts_of(layer.layout)
    assert parts == PARTS
    for share in range(1, parts):
        cut = cut_of(layer.layout, share, parts)
        sides = [
            [(0, cut.panels[product]), (cut.panels[product], cut.all_panels[product])]
            for product in (0, 1)
        ]
        inner = [layer.multiply(x, experts, cache, FIRST, each).copy() for each in sides[0]]
        assert inner[0].shape[1] == cut.columns[0]
        between = np.concatenate(inner, axis=1)
        assert between.shape == (case.rows, case.width)
        out = [layer.multiply(between, experts, cache, SECOND, each).copy() for each in sides[1]]
        assert out[0].shape[1] == cut.columns[1]
        np.testing.assert_array_equal(np.concatenate(out, axis=1), expected)
    layer.close()
    cpu.close()


def test_what_goes_into_a_part_may_be_called_out() -> None:
    case = Case("int4", "int8_block", 128, 96)
    plain, cpu = layer_of(case)
    names = ("out", *plain.node.inputs[1:])
    node = plain.node.replace(inputs=names, outputs=("y",))
    constants, options = graph_of(case).constants, CompileOptions(STATES)
    part = cut_program(cpu, node, constants, 1, options, FIRST, (0, 1))
    x, cache = normal((1, case.hidden), 3), SequenceStore(STATES, 1)
    values = {"out": x, "routes": one_hot(np.zeros(1, np.int64), EXPERTS)}
    (inner,) = part(Batch.of([0], 0, 0, logits="none"), cache, values).values()
    expected = plain.multiply(x, np.zeros(1, np.int64), cache, FIRST, (0, 1))
    np.testing.assert_array_equal(inner, expected)
    part.close()
    plain.close()
    cpu.close()


def test_float_weights_are_not_cut() -> None:
    assert parts_of(SlotLayout([FloatForm((256, 256))] * 3)) == 1


def test_a_schedule_cuts_one_cached_expert_or_none_and_is_done_sooner_or_stays() -> None:
    rng, cuts = np.random.default_rng(2), 0
    schedulers = Scheduler(12), Scheduler(12, PARTS)
    for _ in range(2000):
        count = int(rng.integers(1, 13))
        costs = rng.uniform(1e-4, 1e-2, (count, 3))
        costs[rng.random(count) < 0.6, UPLOAD] = 0
        columns = list(costs.T)
        whole, finer = (scheduler(*columns) for scheduler in schedulers)
        exchange_s = float(rng.choice([0.0, 1e-4, 1e-2]))
        exact = np.ceil(costs * NANOSECONDS).astype(np.int64)
        schedule, parts = with_cut(exact, whole, finer, PARTS, exchange_s)
        if parts == 1:
            assert schedule is whole
            continue
        cuts += 1
        assert schedule.bound_s <= schedule.makespan_s < whole.makespan_s
        is_cut = (schedule.shares > 0) & (schedule.shares < PARTS)
        assert is_cut.sum() == 1 and costs[is_cut, UPLOAD] == 0
        assert set(schedule.order.tolist()) == set(np.flatnonzero(schedule.shares).tolist())
        time = makespan(exact, schedule.shares, schedule.order.tolist(), PARTS)
        assert schedule.makespan_s == pytest.approx(time / PARTS / NANOSECONDS + exchange_s)
    assert 200 < cuts < 1800


@pytest.mark.parametrize(
    ("form", "device_s"),
    [(("olmoe", "int4"), 1.0), (("mixtral", "ternary"), 2.0), (("gpt_oss", "int4"), 2.0)],
)
def test_an_expert_that_is_cut_by_columns_has_the_same_bits(
    form: tuple[str, str], device_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With costs by which no division of whole experts is even.

    What a cut takes the first time, when both sides compile it, says nothing of the next ones.
    """
    tallies, learned, programs = [], [], set()

    def observe(trials: Trials, rows: int, seconds: float, places: int, *, is_other: bool) -> None:
        learned.append(is_other)

    def is_new(program: SharedLayer, cut: CutExpert | None) -> bool:
        programs.add(program)
        return original(program, cut)

    original = SharedLayer._is_new
    monkeypatch.setattr(StandinBackend, "joins", lambda self, shape: False)  # else of prompts only
    monkeypatch.setattr(Trials, "observe", observe)
    monkeypatch.setattr(SharedLayer, "_is_new", is_new)

    def look(backend: StandinBackend, token: int) -> None:
        estimates = backend._estimates
        assert estimates is not None
        estimates.cpu, estimates.upload = Estimate(1.0), Estimate(1.0)
        estimates.device, estimates.exchange_s = Estimate(device_s), 1e-9
        if token == TOKENS - 1:
            session = backend._session
            assert session is not None
            tallies.extend(backend._tallies)
            assert not session.failure and session.resets == 0

    logits = logits_of(*form, standin("memory=8M,link=4G"), look, tokens=TOKENS)
    np.testing.assert_array_equal(logits, logits_of(*form, None, tokens=TOKENS))
    first = sum(len(program._cuts) for program in programs)
    assert 0 < first < sum(tally.cut for tally in tallies) == sum(learned) + first


def test_only_one_expert_is_cut_and_only_one_that_is_there() -> None:
    for shares, is_cached, expected in (
        ([8, 3, 0], [True, True, False], True),
        ([8, 3, 5], [True, True, False], True),  # the other part would have to be uploaded
        ([8, 3, 5], [True, True, True], False),
        ([8, 0, 5], [True, True, False], False),
    ):
        assert cuts_one(shares, is_cached, PARTS) == expected
