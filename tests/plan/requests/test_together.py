"""Plans of what was measured: devices that join unasked, from the break-even on, or not at all."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import edgerun
from edgerun.backends import registry
from edgerun.backends.base import FEW_ROWS, Phase
from edgerun.backends.estimates import kept_bytes
from edgerun.backends.registry import find_candidates
from edgerun.cli.main import main
from edgerun.errors import BackendError
from edgerun.machine import profile
from edgerun.machine.devices import ATTENTION, ELEMENTS, Call, DeviceProfile, device_key
from edgerun.machine.profile import MachineProfile, machine_profile
from edgerun.model.bundle import open_bundle
from edgerun.plan.plans import NEVER, Plan
from edgerun.plan.requests.correction import TRIED_AFTER, Correction, Factor
from edgerun.plan.routes import plan_for
from edgerun.plan.tasks import Budget
from tests.support.bundles import bundle_of

pytest.importorskip("openvino")

MODEL = ("llama", {"weights": "int4", "activations": "fp32"})


def device(version: str, prompt_rate: float, reply_rate: float, **others: Any) -> DeviceProfile:
    """One that multiplies so fast in calls of many rows, and of one."""
    calls = tuple(
        Call(rows, 1_000_000, 1_000_000 / rate)
        for rows, rate in ((1, reply_rate), (64, prompt_rate), (256, prompt_rate))
    )
    kinds = ("float/int4", "float/int8", ATTENTION, ELEMENTS)
    return DeviceProfile(dict.fromkeys(kinds, calls), version=version, **others)


@pytest.fixture
def calibrated(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Pretends that the machine was measured, and OpenVINO's CPU on it."""

    def pretend(device_profile: DeviceProfile, version: str = "") -> None:
        rate = {1: 1e8, 128: 1e8}
        rates = {f"float/{name}": rate for name in ("int4", "int8", "float32")}
        whole = MachineProfile(
            bandwidth={1: 1e9},
            rates=rates,
            fork_join_s={1: 1e-7},
            other_rates={ATTENTION: rate, ELEMENTS: rate},
            devices={device_key("openvino:CPU", device_profile.version): device_profile},
        )
        monkeypatch.setattr(profile, "read_profile", lambda: whole)
        machine_profile.cache_clear()

    yield pretend
    monkeypatch.undo()
    machine_profile.cache_clear()


@pytest.fixture(scope="module")
def version() -> str:
    backend = registry.make_backend("openvino", "CPU")
    return backend.measures()["CPU"]


def plan() -> Plan:
    graph = open_bundle(bundle_of(MODEL[0], **MODEL[1])).graph
    return plan_for(
        graph, find_candidates(given={"threads": 1}), Budget(call_rows=256), weighs_all=True
    )


def where(placement: Plan) -> dict[str, set[str]]:
    routes = {"prompts": placement.prompts.segments} if placement.prompts else {}
    phases = {phase.value: segments for phase, segments in placement.segments.items()}
    return {
        name: {segment.backend for segment in segments}
        for name, segments in {**routes, **phases}.items()
    }


def test_a_device_that_is_faster_for_prompts_takes_them_unasked(
    calibrated: Any, version: str
) -> None:
    calibrated(device(version, 1e10, 1e6, launch_s=1e-3))
    placement = plan()
    assert where(placement) == {
        "prompts": {"openvino:CPU"},
        "prefill": {"cpu"},
        "few": {"cpu"},
        "decode": {"cpu"},
    }
    assert placement.prompts and not placement.is_asked
    (split,) = placement.splits
    tokens = split.from_tokens()
    assert tokens and placement.prompts.from_rows == max(tokens - 1, FEW_ROWS + 1)
    start = f"openvino:CPU from {placement.prompts.from_rows + 1} prompt tokens on; below, and for"
    assert placement.verdict().startswith(start)
    calibrated(device(version, 1e10, 1e6, launch_s=30e-3))
    later = plan().prompts
    assert later and later.from_rows > placement.prompts.from_rows


def test_a_device_that_is_slower_is_refused_with_the_figures(calibrated: Any, version: str) -> None:
    calibrated(device(version, 1e7, 1e7))
    placement = plan()
    assert where(placement) == {phase.value: {"cpu"} for phase in Phase}
    (split,) = placement.splits
    assert split.from_tokens() is None
    there, here = split.seconds_there(256) * 1e3, split.seconds_here(256) * 1e3
    assert placement.verdict() == (
        f"cpu alone: a prompt of 256 tokens takes {there:.4g} ms with openvino:CPU, "
        f"{here:.4g} ms with cpu alone"
    )
    reasons = [refusal.reason for refusal in placement.refusals[Phase.DECODE]]
    assert "slower by estimate" in reasons[0]


@pytest.mark.parametrize(("faster", "goes"), [(1.1, False), (2.0, True)])
def test_a_device_that_is_the_processor_must_gain_more_than_moments_differ_by(
    calibrated: Any, version: str, faster: float, goes: bool
) -> None:
    calibrated(device(version, faster * 1e8, faster * 1e8))
    places = {name for names in where(plan()).values() for name in names}
    assert ("openvino:CPU" in places) is goes


def test_a_device_whose_launch_takes_longer_than_a_call_gains_takes_nothing(
    calibrated: Any, version: str
) -> None:
    """In 512 tokens it would pay, but no call has so many."""
    calibrated(device(version, 1e10, 1e6, launch_s=0.6))
    placement = plan()
    assert placement.prompts is None
    assert placement.splits[0].from_tokens() is None


def test_the_reverse_prompts_on_the_processor_and_replies_on_the_device(
    calibrated: Any, version: str
) -> None:
    calibrated(device(version, 1e7, 1e10))
    placement = plan()
    assert where(placement)["decode"] == {"openvino:CPU"}
    assert where(placement)["prompts"] == {"cpu"}


def test_a_device_whose_networks_have_no_room_takes_no_part(calibrated: Any, version: str) -> None:
    calibrated(device(version, 1e10, 1e6, memory_bytes=300, weight_bytes=100))
    graph = open_bundle(bundle_of(MODEL[0], **MODEL[1])).graph
    weights = sum(constant.nbytes for constant in graph.constants.values())
    candidates = find_candidates(given={"threads": 1})
    enough = 3 * weights * 3  # networks of 1, 64 and 256 rows, three times the weights each
    for memory, takes_part in ((enough, True), (enough - 1, False), (None, True)):
        placement = plan_for(graph, candidates, Budget(memory_bytes=memory), weighs_all=True)
        assert ("openvino:CPU" in placement.backends()) == takes_part
    placement = plan_for(graph, candidates, Budget(memory_bytes=10_000), weighs_all=True)
    for refusals in placement.refusals.values():
        assert [each.reason for each in refusals if "1e-05 GB are free" in each.reason]
    assert not placement.splits


def test_a_model_that_is_loaded_leaves_a_device_alone_that_has_no_room(
    calibrated: Any, version: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    calibrated(device(version, 1e10, 1e6, memory_bytes=300, weight_bytes=100))
    folder = bundle_of(MODEL[0], **MODEL[1])
    for memory, names in ((1 << 30, {"cpu", "openvino:CPU"}), (1 << 10, {"cpu"})):
        monkeypatch.setattr("edgerun.llm.compiling.available_memory", lambda memory=memory: memory)
        with edgerun.load(folder, threads=1) as llm:
            assert {backend.name for backend in llm.model.backends} == names


def test_keys_and_values_that_a_device_keeps_need_room_too(calibrated: Any, version: str) -> None:
    calibrated(device(version, 1e10, 1e6, memory_bytes=1, weight_bytes=1 << 40, mirrors=True))
    graph = open_bundle(bundle_of(MODEL[0], **MODEL[1])).graph
    candidates = find_candidates(given={"threads": 1})
    token_bytes = sum(kept_bytes(node) for node in graph.nodes)
    assert token_bytes > 0
    enough = token_bytes * (Budget().prompt_tokens + Budget().reply_tokens)
    for memory, takes_part in ((enough, True), (enough - 1, False)):
        placement = plan_for(graph, candidates, Budget(memory_bytes=memory), weighs_all=True)
        assert ("openvino:CPU" in placement.backends()) == takes_part


def test_explain_prints_every_term(
    calibrated: Any, version: str, capsys: pytest.CaptureFixture[str]
) -> None:
    measured = device(version, 1e10, 1e6, launch_s=7e-3, store_bytes_s=1e9, measured="2026-11-22")
    calibrated(measured)
    assert main(["plan", str(bundle_of(MODEL[0], **MODEL[1])), "--explain"]) == 0
    shown = capsys.readouterr().out
    assert "openvino:CPU from " in shown and "prompt tokens on; below, and for every" in shown
    for term in (
        "7 ms more",
        "a call of 64 rows",
        "a call of 256 rows",
        "us to hand over",
        "the last token, with cpu",
        "a prompt of 512 tokens",
        "the same with cpu alone",
        "it pays",
        f"measured 2026-11-22 with {version}",
    ):
        assert term in shown


def test_another_driver_counts_as_no_measurement_and_is_named(calibrated: Any) -> None:
    calibrated(device("OpenVINO 2020.1", 1e10, 1e10))
    candidates = find_candidates()
    assert [backend.name for backend in candidates.backends] == ["cpu"]
    assert "measured with OpenVINO 2020.1 only" in candidates.absent["openvino:CPU"]
    assert "--calibrate" in candidates.absent["openvino:CPU"]


def test_a_device_that_is_gone_is_named(
    calibrated: Any, version: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    device_profile = device(version, 1e10, 1e10)
    calibrated(device_profile)
    monkeypatch.setattr("edgerun.backends.openvino.devices.missing_package", lambda: "it is gone")
    candidates = find_candidates()
    assert [backend.name for backend in candidates.backends] == ["cpu"]
    assert candidates.absent["openvino:CPU"] == "it is gone"


def test_beside_an_unmeasured_processor_no_device_counts(calibrated: Any, version: str) -> None:
    calibrated(device(version, 1e10, 1e10))
    partial = replace(machine_profile(), bandwidth={})
    assert partial.device("openvino:CPU", version) is None


def test_prompts_run_there_from_the_break_even_on(calibrated: Any, version: str) -> None:
    """What is generated is what the processor generates alone."""
    folder, ids = bundle_of(MODEL[0], **MODEL[1]), [3, 5, 7, 11] * 20
    with edgerun.load(folder, place="prefill=cpu", threads=1) as alone:
        expected = alone.generate(ids, temperature=0, max_tokens=8, ignore_eos=True).ids
    calibrated(device(version, 1e10, 1e6, launch_s=4e-3))
    with edgerun.load(folder, threads=1) as llm:
        assert llm.generate(ids[:16], temperature=0, max_tokens=2, ignore_eos=True).ids
        assert not llm.reports()
        assert llm.generate(ids, temperature=0, max_tokens=8, ignore_eos=True).ids == expected
        (report,) = llm.reports()
    assert sum(row["calls"] for row in report.rows) >= 1


def test_a_device_that_nobody_asked_for_may_fail_to_compile(
    calibrated: Any,
    version: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def refuse(*args: object) -> None:
        raise BackendError("the compiler ends")

    monkeypatch.setattr("edgerun.backends.openvino.OpenvinoBackend.compile", refuse)
    folder, ids = bundle_of(MODEL[0], **MODEL[1]), [3, 5, 7, 11] * 20
    calibrated(device(version, 1e10, 1e6))
    with caplog.at_level(logging.WARNING), edgerun.load(folder, threads=1) as llm:
        assert len(llm.generate(ids, temperature=0, max_tokens=4, ignore_eos=True).ids) == 4
    assert "openvino:CPU takes no part after all: the compiler ends" in caplog.text
    with pytest.raises(BackendError, match="the compiler ends"):
        edgerun.load(folder, place="prefill=openvino:CPU", threads=1)


def test_calls_that_made_a_network_say_nothing_of_the_device(
    calibrated: Any, version: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[int] = []
    monkeypatch.setattr(
        "edgerun.plan.requests.correction.Correction.went_there",
        lambda self, rows, s: seen.append(rows),
    )
    calibrated(device(version, 1e12, 1e6))
    rng = np.random.default_rng(0)
    with edgerun.load(bundle_of(MODEL[0], **MODEL[1]), threads=1) as llm:
        for _ in range(3):
            ids = rng.integers(5, llm.model.vocab_size, 60).tolist()
            llm.generate(ids, temperature=0, max_tokens=1, ignore_eos=True)
    assert seen == [59, 59]


@pytest.fixture
def apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """The device counts as one that is not the processor, and nothing depends on its speed."""
    monkeypatch.setattr("edgerun.backends.openvino.OpenvinoBackend.is_processor", False)
    monkeypatch.setattr(Factor, "value", 1.0)


@pytest.mark.usefixtures("apart")
def test_a_device_that_is_believed_to_lose_is_tried_after_some_prompts(
    calibrated: Any, version: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = bundle_of(MODEL[0], **MODEL[1])
    seen: list[int] = []
    monkeypatch.setattr(Correction, "went_there", lambda self, rows, s: seen.append(rows))
    calibrated(device(version, 7e7, 1e7))  # two thirds of the processor's speed
    assert plan().prompts is None
    rng = np.random.default_rng(0)
    options: dict[str, Any] = {"temperature": 0, "max_tokens": 4, "ignore_eos": True}
    with (
        edgerun.load(folder, place="prefill=cpu", threads=1) as here,
        edgerun.load(folder, threads=1) as llm,
    ):
        assert [backend.name for backend in llm.model.backends] == ["cpu"]
        for number in range(TRIED_AFTER + 3):
            ids = rng.integers(5, llm.model.vocab_size, 60).tolist()
            assert llm.generate(ids, **options).ids == here.generate(ids, **options).ids
            assert number >= TRIED_AFTER or not seen
    assert seen and set(seen) == {59}  # those that found the network ready


@pytest.mark.usefixtures("apart")
def test_nothing_is_tried_that_is_the_processor_or_was_not_measured(
    calibrated: Any, version: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph = open_bundle(bundle_of(MODEL[0], **MODEL[1])).graph

    def trial() -> Any:
        return plan_for(graph, find_candidates(given={"threads": 1})).trial

    calibrated(device(version, 7e7, 1e7))
    attempt = trial()
    assert attempt is not None
    split, route = attempt()
    assert split.there.names == ("openvino:CPU",) and route.from_rows == NEVER
    assert {segment.backend for segment in route.segments} == {"openvino:CPU"}
    monkeypatch.setattr("edgerun.backends.openvino.OpenvinoBackend.is_processor", True)
    assert trial() is None
    calibrated(device(version, 1e10, 1e6))
    assert trial() is None  # it goes there anyway
    monkeypatch.setattr("edgerun.backends.openvino.OpenvinoBackend.is_processor", False)
    calibrated(device("OpenVINO 2020.1", 7e7, 1e7))
    assert trial() is None
