"""The simulator of shared layers: against the schedule's own rules, and what must come of it."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import msgspec
import numpy as np
import pytest

from edgerun.errors import InputError
from edgerun.offload.schedule import NANOSECONDS, Scheduler, Starts
from edgerun.offload.trace_file import write_trace
from tests.offload.test_schedule import alike, any_instance, instance, shortest
from tools.bench.offload.__main__ import TITLE, main
from tools.bench.offload.machine import CPU, DEVICE, UPLOAD, Division, play
from tools.bench.offload.profile import FOLDER, MODELS, Profile, Speeds, profiles
from tools.bench.offload.rules import PARTS, RULES, hybrimoe, ours
from tools.bench.offload.simulate import simulate
from tools.bench.synthetic_trace import Synthetic

OLMOE = MODELS["olmoe-1b-7b"]
TRACE = Synthetic(tokens=188, layers=3, experts=64, top_k=8, zipf=0.6, reuse=0.3).trace()


def speeds(name: str = "gpu-256-bit-pcie3-x16") -> Speeds:
    return Speeds(profiles()[name], OLMOE)


@pytest.mark.parametrize("rule", sorted(RULES))
def test_a_layer_plays_as_its_division_says(rule: str) -> None:
    """Every expert is computed exactly once, nothing before its weights are there."""
    rng = np.random.default_rng(1)
    for turn in range(1700):  # with all rules 10,200
        make = (instance, any_instance, alike)[turn % 3]
        costs = make(rng, rng.integers(1, 20)) / 1e6
        room = int(rng.integers(0, len(costs) + 1))
        division = RULES[rule](costs, room)
        line = play(costs, division)
        shares = np.zeros((2, len(costs)))
        for resource, expert, share, _ in line.products:
            shares[resource, expert] += share
        np.testing.assert_allclose(shares.sum(axis=0), 1)
        assert sum(costs[expert, UPLOAD] > 0 for expert, _ in division.device) <= room
        link = device = 0.0
        for expert, share in division.device:
            link += share * costs[expert, UPLOAD]
            device = max(device, link * (costs[expert, UPLOAD] > 0)) + share * costs[expert, DEVICE]
        here = sum(share * costs[expert, CPU] for expert, share in division.cpu)
        assert line.makespan_s == pytest.approx(max(here, device))


def test_a_schedule_that_begins_late_takes_what_the_events_say() -> None:
    """Both as processor and device begin at once and as they do not."""
    rng, scheduler = np.random.default_rng(5), Scheduler(8, 4)
    for number in range(300):
        costs = rng.uniform(1e-4, 1e-2, (int(rng.integers(1, 9)), 3))
        costs[rng.random(len(costs)) < 0.5, UPLOAD] = 0
        schedule = scheduler(*costs.T)
        shares = schedule.shares / 4
        starts = Starts(*rng.uniform(0, 5e-3 if number >= 30 else 0, 3).tolist())
        order = [(int(e), float(shares[e])) for e in schedule.order]
        here = [(int(e), 1 - float(shares[e])) for e in np.flatnonzero(shares < 1)]
        cached = any(costs[e, UPLOAD] == 0 for e, _ in order)
        events = play(costs, Division(here, order, starts)).makespan_s
        planned = schedule.seconds(list(costs.T), 4, starts)
        if cached or number < 30:
            assert planned == pytest.approx(events)
        assert planned >= events - 1e-9 >= schedule.bound_s - 2e-9
        if number < 30:
            assert planned == pytest.approx(schedule.makespan_s, abs=1e-8)


def test_ours_plays_as_long_as_it_was_planned() -> None:
    rng, scheduler = np.random.default_rng(2), Scheduler(64, PARTS)
    for _ in range(200):
        costs = instance(rng, rng.integers(1, 65)) / NANOSECONDS
        planned = scheduler(*costs.T).makespan_s
        assert play(costs, ours(costs, 64)).makespan_s == pytest.approx(planned, rel=1e-6)


def test_ours_is_never_slower_than_the_greedy_of_hybrimoe() -> None:
    rng = np.random.default_rng(3)
    worst = 0.0
    for turn in range(10_000):
        costs = (instance, alike)[turn % 2](rng, rng.integers(1, 33)) / 1e6
        times = [play(costs, rule(costs, len(costs))).makespan_s for rule in (ours, hybrimoe)]
        worst = max(worst, times[0] / times[1])
    assert worst <= 1 + 1e-9


@pytest.mark.parametrize("tokens", [1, 8, 64])
@pytest.mark.parametrize("model", ["mixtral-8x7b", "olmoe-1b-7b"])
def test_cutting_experts_saves_four_percent_of_the_best_without(model: str, tokens: int) -> None:
    """On average over devices and caches, of up to twelve active experts."""
    rng, shape, ratios = np.random.default_rng(4), MODELS[model], []
    scheduler = Scheduler(12, PARTS)
    for profile, share, _ in itertools.product(profiles().values(), (0.25, 0.5, 0.75), range(6)):
        choices = [rng.permutation(shape.experts)[: shape.top_k] for _ in range(tokens)]
        counts = np.bincount(np.concatenate(choices))
        counts = counts[counts > 0][:12]
        costs = Speeds(profile, shape).costs(counts, rng.random(len(counts)) < share)
        best = shortest(np.rint(costs * NANOSECONDS).astype(np.int64)) / NANOSECONDS
        ratios.append(scheduler(*costs.T).makespan_s / best)
    assert np.mean(ratios) <= 0.96


@pytest.mark.parametrize("rule", sorted(RULES))
def test_an_outcome_adds_up(rule: str) -> None:
    outcome = simulate(speeds(), TRACE, rule, 0.5)
    assert outcome.experts == 60 * 3 * 8
    assert 0 < outcome.hits < outcome.experts
    assert outcome.bound_s <= outcome.seconds
    assert outcome.seconds < 1.03 * outcome.bound_s or rule != "edgerun"
    assert (outcome.waited == 0) == (outcome.link_s == 0)
    assert (
        rule not in ("static", "Fiddler") or outcome.waited == 0
    )  # uploads pay for many rows only


def test_with_room_for_all_everything_is_on_the_device() -> None:
    outcomes = {rule: simulate(speeds(), TRACE, rule, 1.0) for rule in RULES}
    assert outcomes["upload all"].hits > 0.99 * outcomes["upload all"].experts
    assert outcomes["edgerun"].seconds <= min(each.seconds for each in outcomes.values()) * 1.001


def test_prefetch_helps_where_the_link_idles_and_stays_away_where_it_does_not() -> None:
    """The link of a desktop idles in decoding; one that is kept busy by every miss does not."""
    plain = simulate(speeds(), TRACE, "edgerun", 0.5)
    ahead = simulate(speeds(), TRACE, "edgerun", 0.5, recall=(0.85, 0.75, 0.65))
    assert ahead.seconds < 0.97 * plain.seconds and 0.3 < ahead.recall <= 1
    profile = profiles()["gpu-384-bit-pcie4-x16"]
    between = msgspec.structs.replace(profile.layer_s, value=400e-6)
    idle = Speeds(msgspec.structs.replace(profile, layer_s=between), OLMOE)
    plain = simulate(idle, TRACE, "upload all", 0.5)
    ahead = simulate(idle, TRACE, "upload all", 0.5, recall=(0.85, 0.75, 0.65))
    assert plain.link_s < 0.5 * plain.seconds
    assert ahead.waited < 0.55 * plain.waited and ahead.link_s < 1.2 * plain.link_s
    slow = speeds("gpu-192-bit-pcie3-x4")
    plain = simulate(slow, TRACE, "upload all", 0.25)
    ahead = simulate(slow, TRACE, "upload all", 0.25, recall=(0.85, 0.75, 0.65))
    assert ahead.link_s <= 1.02 * plain.link_s
    assert ahead.seconds <= plain.seconds * 1.001


def test_profiles_say_where_each_figure_is_from() -> None:
    assert len(profiles()) == 4
    for profile in profiles().values():
        assert {figure.basis for figure in profile.figures().values()} == {"assumed"}
        assert len(profile.figures()) == 8
    for path in FOLDER.glob("measured/*.json"):
        figures = Profile.read(path).figures()
        assert [figures[name].basis for name in ("link_bytes_s", "product_s")] == ["measured"] * 2


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"link_bytes_s": None}, "missing required field `link_bytes_s`|Expected `object`"),
        ({"link_bytes_s": {"value": 1e9}}, "missing required field `basis`"),
        (
            {"link_bytes_s": {"value": 0, "basis": "assumed", "source": "x", "date": "2026-11-22"}},
            "Expected `float` > 0",
        ),
        (
            {"link_bytes_s": {"value": 1, "basis": "guessed", "source": "x", "date": "2026-11-22"}},
            "Invalid enum value 'guessed'",
        ),
        ({"more": 1}, "unknown field `more`"),
    ],
)
def test_a_profile_without_sources_is_refused(
    change: dict[str, object], message: str, tmp_path: Path
) -> None:
    text = json.loads((FOLDER / "gpu-256-bit-pcie3-x16.json").read_text())
    (tmp_path / "a.json").write_text(json.dumps(text | change))
    with pytest.raises(InputError, match=message):
        Profile.read(tmp_path / "a.json")


def test_the_table_says_that_it_is_simulated(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--models", "olmoe-1b-7b", "--steps", "8", "--layers", "1", "--share", "0.5"]
    assert main(arguments) == 0
    lines = capsys.readouterr().out.splitlines()
    assert TITLE in lines[0] and len([line for line in lines if "olmoe" in line]) == 4
    assert main([*arguments, "--json", "--recall", "0.9"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["title"] == TITLE
    for row in told["rows"]:
        assert row["bound_ms"] <= row["step_ms"]["edgerun"] * (1 + 1e-9)


def test_a_trace_of_another_shape_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_trace(tmp_path / "t", TRACE)
    assert main(["--trace", str(tmp_path / "t"), "--models", "mixtral-8x7b"]) == 2
    assert "8 of 64 experts a token and mixtral-8x7b has 2 of 8" in capsys.readouterr().err
    with pytest.raises(InputError, match="expected more than 300 tokens"):
        simulate(speeds(), TRACE, "edgerun", 0.5, warm=300)


def test_division_of_nothing_takes_no_time() -> None:
    assert play(np.zeros((0, 3)), Division([], [])).makespan_s == 0
