"""Layers are shared where that is expected, and seen, to be faster than the processor alone."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable, Iterator

import numpy as np
import pytest

import edgerun
from edgerun import env
from edgerun.backends.base import Executable, Phase
from edgerun.backends.cpu import CpuBackend
from edgerun.backends.registry import find_candidates
from edgerun.cli.main import main
from edgerun.errors import BackendError, InputError, UnsupportedError
from edgerun.offload.cuda import ASSUMED_AROUND_S
from edgerun.offload.estimates import Estimate, Estimates
from edgerun.offload.sharing.outlook import Call, outlook
from edgerun.offload.sharing.trials import ENOUGH, Trials
from edgerun.offload.sharing.ways import TRIAL, FasterWay
from edgerun.offload.standin import StandinBackend
from edgerun.state import Batch
from tests.support.bundles import bundle_of
from tests.support.sharing import F32, logits_of, running
from tools.bench.offload.profile import FOLDER, MODELS, Profile

FORM = "olmoe", "int4"
DEVICE = "memory=8M,link=1G"


class Priced(StandinBackend):
    """A stand-in of which much or little is expected, whatever it takes."""

    def __init__(self, device_s: float, around_s: float) -> None:
        super().__init__()
        self.prices = device_s, around_s
        self.configure({"threads": 1})
        self.use_device(DEVICE)

    def assumed_costs(self, shape: tuple[int, int], nbytes: int) -> Estimates:
        device_s, around_s = self.prices
        costs = super().assumed_costs(shape, nbytes)
        quick = Estimate(1e-12), Estimate(1e-12)
        return Estimates(
            costs.cpu, Estimate(device_s), costs.upload, *quick, around=Estimate(around_s)
        )

    def assumed_inside(self, shape: tuple[int, int], nbytes: int) -> Estimates:
        return self.assumed_costs(shape, nbytes)


@pytest.fixture
def slow_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every op seems to take a millisecond on it."""
    monkeypatch.setattr(CpuBackend, "cost", lambda self, graph, node, shape: 1e-3)


@pytest.mark.usefixtures("slow_processor")
@pytest.mark.parametrize(("device_s", "around_s", "is_shared"), [
    (1e-6, 1e-6, True), (1e-6, 2e-3, False), (2e-3, 1e-6, False)
])  # fmt: skip
def test_a_plan_shares_what_is_faster_so_and_says_why(
    device_s: float, around_s: float, is_shared: bool
) -> None:
    backend = Priced(device_s, around_s)
    with running(*FORM, backend, 1) as (_, _, _, plan):
        for phase in (Phase.DECODE, Phase.PREFILL):
            assert ("standin" in {part.backend for part in plan.segments[phase]}) == is_shared
        reasons = [each.reason for each in plan.refusals[Phase.DECODE] if each.backend == "standin"]
        ops = sum(len(part.graph.nodes) for part in plan.segments[Phase.DECODE])
        slower = [reason for reason in reasons if "processor alone is faster" in reason]
        assert bool(slower) != is_shared
        if slower:
            alone, shared, around = map(float, re.findall(r"[\d.]+(?= ms|\))", slower[0]))
            assert alone == pytest.approx(ops, rel=0.01) and shared >= alone
            assert "ms a token against" in slower[0] and slower[0].endswith("(2 nodes)")
            assert around >= 2e3 * around_s * 0.99


def test_beside_a_fast_processor_the_measured_gpu_is_not_expected_to_pay() -> None:
    """By the profile of an H100 and what replies took beside it, on the processor and shared."""
    machine, model = Profile.read(FOLDER / "measured" / "nvidia-h100.json"), MODELS["olmoe-1b-7b"]
    ternary_bytes = model.expert_weights / 4 * 1.06
    estimates = Estimates(
        Estimate(1.0),
        Estimate(machine.product_s.value + ternary_bytes / machine.device_read_bytes_s.value),
        Estimate(machine.upload_s.value + ternary_bytes / machine.link_bytes_s.value),
        around=Estimate(ASSUMED_AROUND_S),
    )
    fast, slow = (Call.of(model.experts, model.top_k, 1, layer_s) for layer_s in (4e-4, 8e-3))
    for share in (0.1, 0.25, 0.5, 1.0):
        layer = outlook(fast, share, 1024, estimates)
        assert layer.divided_s > layer.alone_s == pytest.approx(layer.shared_s)
        assert layer.divided_s - layer.around_s < layer.alone_s  # without which it would
        layer = outlook(slow, share, 1024, estimates)
        assert layer.divided_s == layer.shared_s < layer.alone_s


class Taking(Executable):
    """A program that seems to take so long."""

    def __init__(self, seconds: float, clock: list[float]) -> None:
        self.seconds, self.clock, self.calls = seconds, clock, 0
        self.rows_name = "x"

    def __call__(self, *_: object) -> dict[str, F32]:  # type: ignore[override]
        self.clock[0] += self.seconds
        self.calls += 1
        return {}

    def close(self) -> None:
        self.seconds = -1


@pytest.mark.parametrize(("shared_s", "alone_s"), [(1.0, 3.0), (3.0, 1.0)])
def test_layers_go_the_way_that_was_faster(
    shared_s: float, alone_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, trials = [0.0], Trials(TRIAL)
    monkeypatch.setattr("edgerun.offload.sharing.ways.time.monotonic", lambda: clock[0])
    pairs = [(Taking(shared_s, clock), Taking(alone_s, clock)) for _ in range(4)]
    layers = [FasterWay(*pair, trials) for pair in pairs]  # type: ignore[arg-type]
    values, calls = {"x": np.zeros((1, 4), np.float32)}, 5 * TRIAL
    for _ in range(calls):
        for layer in layers:
            layer(Batch.of([0], 0, 0), None, values)  # type: ignore[arg-type]
    slower = sum(pair[int(shared_s < alone_s)].calls for pair in pairs)
    assert 4 * calls / TRIAL <= slower <= 4 * calls / TRIAL + ENOUGH + 8
    layers[0].close()
    assert pairs[0][0].seconds == pairs[0][1].seconds == -1


@pytest.mark.usefixtures("slow_processor")
def test_both_ways_have_the_processors_bits() -> None:
    expected = logits_of(*FORM, None)
    backend = Priced(1e-6, 1e-6)
    np.testing.assert_array_equal(logits_of(*FORM, backend), expected)
    (decode,) = (tally for tally in backend._tallies if tally.phase is Phase.DECODE)
    assert ENOUGH <= decode.layers < 2 * 63  # of two layers and 63 tokens some went either way


@pytest.mark.usefixtures("announced")
def test_the_processor_is_the_one_that_the_rest_goes_to() -> None:
    """So that experts lie in memory once, and one team of threads computes."""
    shared, cpu = find_candidates(device=f"standin:{DEVICE}").backends
    assert shared._cpu is cpu  # type: ignore[attr-defined]
    candidates = find_candidates(device=f"standin:{DEVICE}").reusing([cpu])
    shared, again = candidates.backends
    assert shared._cpu is again is cpu  # type: ignore[attr-defined]
    shared.close()


@pytest.mark.usefixtures("announced")
def test_what_is_not_shared_is_told_with_how_to_share_it_all_the_same(
    caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, device = bundle_of(*FORM[:1], weights=FORM[1]), f"standin:{DEVICE}"
    with caplog.at_level(logging.WARNING), edgerun.load(folder, device=device, threads=1) as llm:
        assert not llm.reports()
    (record,) = caplog.records
    assert re.search(
        r"'standin' computes no part of this model, cpu computes all of it: the processor alone is "
        r"faster: [\d.]+ ms a token against [\d.]+ ms \(launches and bookkeeping [\d.]+\) "
        r"\(2 nodes\); --share always shares all the same",
        record.getMessage(),
    )
    with edgerun.load(folder, device=device, threads=1, share="always") as llm:
        llm.generate("O", max_tokens=3)
        assert len(llm.reports()) == 1
    alone = (
        r"standin is required and takes no part: the processor alone is faster: .*; --share always"
    )
    with pytest.raises(UnsupportedError, match=alone):
        edgerun.load(folder, device=device, threads=1, require="standin")
    with pytest.raises(InputError, match="share is 'often'; expected one of auto, always"):
        edgerun.load(folder, share="often")
    capsys.readouterr()
    for share in ("auto", "always"):
        assert main(["plan", str(folder), "--device", device, "--json", "--share", share]) == 0
        told = json.loads(capsys.readouterr().out)
        backends = {row["backend"] for row in told["placements"] if row["chosen"]}
        assert ("standin" in backends) == (share == "always")
        decode = next(row for row in told["devices"][0]["rows"] if row["phase"] == "decode")
        assert decode["pays"] == "no" and decode["ms a layer"] > decode["CPU alone"]


@pytest.fixture
def in_environment(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], None]]:
    """Names a device as the environment does."""

    def name(device: str) -> None:
        monkeypatch.setenv("EDGERUN_STANDIN_DEVICE", device)
        env.settings.cache_clear()

    yield name
    monkeypatch.undo()
    env.settings.cache_clear()


def test_what_the_processor_takes_alone_is_what_the_plan_says() -> None:
    """Of a prompt, too, of which the last layer sees one row."""
    with running(*FORM, Priced(1e-6, 1.0), 1) as (_, _, _, plan):
        for phase, segments in plan.segments.items():
            reasons = [each.reason for each in plan.refusals[phase] if each.remedy]
            (alone,) = (re.findall(r"alone is faster: (.*?) ms", reason)[0] for reason in reasons)
            seconds = sum(segment.seconds for segment in segments)
            assert float(alone) == pytest.approx(1e3 * seconds, rel=0.01), phase


@pytest.mark.usefixtures("announced")
def test_a_device_without_room_stops_those_only_who_name_it(
    in_environment: Callable[[str], None], capsys: pytest.CaptureFixture[str]
) -> None:
    """Who plans is told the same as who loads."""
    folder, device = bundle_of(*FORM[:1], weights=FORM[1]), "standin:memory=1K"
    with pytest.raises(BackendError, match=r"an expert takes .*: give it memory="):
        edgerun.load(folder, device=device, threads=1)
    for more in ([], ["--explain"], ["--json"]):
        assert main(["plan", str(folder), "--device", device, *more])
        out, err = capsys.readouterr()
        assert not out and "an expert takes" in err
    in_environment("memory=1K")
    for more in ([], ["--explain"], ["--json"]):
        assert main(["plan", str(folder), *more]) == 0
        assert ("an expert takes" in capsys.readouterr().out) == bool(more)
    with edgerun.load(folder, threads=1) as llm:
        assert [backend.name for backend in llm.model.backends] == ["cpu"]


@pytest.mark.usefixtures("announced")
@pytest.mark.parametrize("named", [{}, {"backend": "cpu"}])
def test_what_is_to_be_shared_without_a_device_is_refused(
    named: dict[str, str], in_environment: Callable[[str], None]
) -> None:
    """One that only the environment names goes by cost, and so would share nothing."""
    in_environment(DEVICE)
    with pytest.raises(InputError, match="share is 'always', and no device was named that"):
        edgerun.load(bundle_of(*FORM[:1], weights=FORM[1]), share="always", **named)  # type: ignore[arg-type]


@pytest.mark.parametrize("named", ["prefill", "decode"])
def test_a_device_that_a_place_names_in_vain_is_named(
    caplog: pytest.LogCaptureFixture, named: str
) -> None:
    """A model without experts has nothing for it."""
    place = f'{named}="standin:{DEVICE}"'
    with edgerun.load(bundle_of("llama", weights="int4"), place=place) as llm:
        assert {backend.name for backend in llm.model.backends} == {"cpu"}
    assert "the back-end 'standin' computes no part of this model, cpu computes all" in caplog.text


def test_experts_that_are_read_from_the_disk_are_the_processors(
    caplog: pytest.LogCaptureFixture, slow_processor: None, capsys: pytest.CaptureFixture[str]
) -> None:
    """Even where to share them would be expected to pay: a device gets them from memory."""
    model = bundle_of(FORM[0], weights=FORM[1])
    named = {"device": f"standin:{DEVICE}", "expert_memory": "50%", "threads": 1}
    with caplog.at_level(logging.WARNING), edgerun.load(model, **named) as llm:  # type: ignore[arg-type]
        assert llm.model.experts is not None
        assert {backend.name for backend in llm.model.backends} == {"cpu"}
    assert "computes no part" in caplog.text
    assert "gets experts from memory, which has not room for all of them (" in caplog.text
    with pytest.raises(InputError, match="share is 'always', and experts are read from the disk"):
        edgerun.load(model, share="always", **named)  # type: ignore[arg-type]
    command = ["plan", str(model), "--device", named["device"], "--expert-memory", "50%"]
    assert main([*map(str, command), "--explain"]) == 0
    shown = capsys.readouterr().out
    assert "gets experts from memory" in shown
    assert "memory has all of them" not in shown
