"""The tool that compares policies, on traces whose hits can be told beforehand."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from edgerun.errors import InputError
from edgerun.offload.cache import Step
from edgerun.offload.replay import count_hits, steps_of
from edgerun.offload.trace_file import read_trace, write_trace
from tests.conftest import ROOT
from tools.bench.policies import DECAYS, Tunable, main, row, table, tuned_hits
from tools.bench.synthetic_trace import Synthetic

TRACES = ROOT / "tools" / "bench" / "traces"
SMALL = Synthetic(tokens=60, layers=2, experts=16, top_k=2, zipf=1.0, reuse=0.3)


def rates_of(capture: pytest.CaptureFixture[str], *arguments: object) -> list[dict[str, float]]:
    assert main([*map(str, arguments), "--json"]) == 0
    return [each["rates"] for each in json.loads(capture.readouterr().out)]


def test_equal_experts_hit_as_often_as_there_is_room() -> None:
    """Whatever is kept: nothing tells which of them come."""
    trace = Synthetic(tokens=1500, layers=1, experts=32, top_k=2).trace()
    shares = row("", [trace], 0.5).rates
    best = shares.pop("belady")
    for rate in shares.values():
        assert rate == pytest.approx(0.5, abs=0.03)
        assert rate < best - 0.1


def test_tokens_that_never_change_their_experts_miss_once() -> None:
    shares = row("", [replace(SMALL, reuse=1.0).trace()], 0.125).rates
    assert set(shares.values()) == {59 / 60}


def test_popularity_is_that_of_zipf() -> None:
    trace = Synthetic(tokens=4000, layers=1, experts=8, top_k=1, zipf=1.0).trace()
    counts = np.sort(np.bincount(trace.choices["expert"].ravel(), minlength=8))[::-1]
    expected = 1 / np.arange(1, 9) / np.sum(1 / np.arange(1, 9))
    assert counts / 4000 == pytest.approx(expected, abs=0.03)


def test_a_token_goes_to_each_expert_once_and_weights_fall() -> None:
    for synthetic in (SMALL, replace(SMALL, top_k=16, reuse=0.9, zipf=10.0)):
        choices = synthetic.trace().choices  # which refuses an expert that comes twice
        assert (np.diff(choices["weight"], axis=2) <= 0).all()
        sums = choices["weight"].sum(axis=2, dtype=np.float32)
        assert np.abs(sums - 1).max() < 1e-2


def test_files_are_replayed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first, second = SMALL.trace(), replace(SMALL, seed=1).trace()
    paths = [tmp_path / "a", tmp_path / "b"]
    for path, trace in zip(paths, (first, second), strict=True):
        write_trace(path, trace)
    alone = [rates_of(capsys, path, "--share", 0.25)[0] for path in paths]
    (together,) = rates_of(capsys, *paths, "--share", 0.25)
    assert together.keys() - alone[0].keys() == {"tuned"}
    for name, rate in together.items():
        assert rate <= together["belady"]
        if name != "tuned":
            assert rate == pytest.approx((alone[0][name] + alone[1][name]) / 2)
    write_trace(paths[1], replace(SMALL, zipf=0.0).trace())
    assert main([*map(str, paths)]) == 2
    assert "is another model's" in capsys.readouterr().err


def test_the_decay_is_that_of_the_other_half() -> None:
    """Where popularity never changes all uses count alike; where it changes, late ones do."""
    steady = [replace(SMALL, tokens=300, zipf=1.5, reuse=0.0, seed=seed).trace() for seed in (1, 2)]
    replays = [[steps_of(trace, place) for place in range(2)] for trace in steady]
    counted = sum(count_hits(steps, 4, Tunable(0.0)) for trace in replays for steps in trace)
    assert tuned_hits(replays, 4) == pytest.approx(counted, rel=0.02)
    # Of two halves each is replayed with what suits the other: for one of these that is wrong.
    turns = [Step(0, (number // 40 % 3 * 4 + number % 2,), (1.0,)) for number in range(480)]
    hits = [[count_hits(turns, 3, Tunable(decay))] for decay in DECAYS]
    assert tuned_hits([[turns], [turns]], 3) == 2 * max(hits)[0]


@pytest.mark.parametrize("share", [0.125, 0.25, 0.5])
@pytest.mark.parametrize(
    ("count", "points"), [(4, 0.02), pytest.param(40, 0.01, marks=pytest.mark.slow)]
)
def test_of_a_trained_model_the_tuned_policy_is_about_the_best(
    count: int, points: float, share: float
) -> None:
    """Of four stories it is tuned on two, which is little."""
    traces = [read_trace(path) for path in sorted(TRACES.glob("*.trace"))[:count]]
    assert len(traces) == count
    shares = row("", traces, share).rates
    bound, tuned = shares.pop("belady"), shares.pop("tuned")
    assert max(shares.values()) - points <= tuned < bound
    assert tuned > shares["lru"]


def test_the_table_is_markdown(capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--tokens", "20", "--layers", "1", "--zipf", "1", "--reuse", "0", "0.5"]
    assert main([*options, "--share", "0.25", "1"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2 + 4
    assert len({line.count("|") for line in lines}) == 1
    assert lines[0].endswith("| belady |")
    assert lines[2].startswith("| synthetic, Zipf 1, reuse 0 | 20 | 25.0%, 16 | 0.")
    assert list(table([row("x", [SMALL.trace()], 0.5)]))[2].startswith("| x | 60 | 50.0%, 8 |")


SHARES = [(0.1, 6), (0, 0), (1.5, 96), (-1, -64), (float("nan"), 0), (float("inf"), 0)]


@pytest.mark.parametrize(("share", "slots"), SHARES)
def test_a_share_without_room_for_a_token_is_refused(
    capsys: pytest.CaptureFixture[str], share: float, slots: int
) -> None:
    assert main(["--tokens", "5", "--share", str(share)]) == 2
    line = capsys.readouterr().err
    assert f"a share of {share:g} is room for {slots} of 64 experts" in line
    assert "room for 8, which a token needs at once" in line


@pytest.mark.parametrize(
    "changed",
    [{"top_k": 17}, {"top_k": 0}, {"tokens": 0}, {"layers": 0}, {"experts": 65535}, {"zipf": 11.0}]
    + [{"reuse": 1.1}, {"reuse": -0.1}, {"zipf": -1.0}, {"zipf": float("nan")}],
)
def test_sizes_that_do_not_belong_together_are_refused(changed: dict[str, float]) -> None:
    with pytest.raises(InputError, match="expected"):
        replace(SMALL, **changed)  # type: ignore[arg-type]
