"""What segments take is counted while somebody reads, and compared with what was expected."""

from __future__ import annotations

import json
from typing import Any

import pytest

import edgerun
from edgerun.backends import cpu
from edgerun.backends.base import Phase, Shape
from edgerun.cli.benchmark.segments import median_figures, segment_figures, segment_lines
from edgerun.cli.main import main
from edgerun.llm import experts
from edgerun.machine.devices import ELEMENTS
from edgerun.machine.disk import NOMINAL_DISK
from edgerun.machine.profile import MachineProfile
from edgerun.plan.calibration.processor import Limits
from edgerun.plan.metering import Meter, MeteredCall
from edgerun.plan.plans import Segment
from edgerun.plan.requests.forecast import metered_seconds, path_seconds
from edgerun.plan.tasks import Task
from tests.support.bundles import bundle_of
from tests.support.shapes import llama_graph

MEASURED = MachineProfile(
    bandwidth={1: 1e10},
    rates={"float/int4": {1: 1e9}},
    fork_join_s={1: 1e-6},
    other_rates={ELEMENTS: {64: 1e9}},
    call_s=1e-3,
)


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu, "machine_profile", lambda: MEASURED)


def test_calls_are_counted_while_they_are_read_and_no_longer() -> None:
    options: dict[str, Any] = {"temperature": 0, "max_tokens": 4, "ignore_eos": True}
    place = "prefill=reference,decode=cpu"
    with edgerun.load(bundle_of("llama", weights="int4"), place=place, threads=1) as llm:
        llm.generate([3] * 40, **options)
        with llm.model.programs.meters.reading() as meters:
            llm.generate([5] * 40, **options)
        llm.generate([7] * 40, **options)
        by_part = {meter.part: meter for meter in meters if meter.calls}
        assert set(by_part) == {"prompts", "decode"}
        (prompt,) = by_part["prompts"].calls
        assert (prompt.rows, prompt.logit_rows, prompt.cached) == (39, 0, 0)
        assert by_part["prompts"].segment.backend == "reference"
        steps = by_part["decode"].calls
        assert [(call.rows, call.logit_rows, call.cached) for call in steps] == [
            (1, 1, cached) for cached in (39, 40, 41, 42)
        ]
        assert by_part["decode"].measured_s == sum(call.seconds for call in steps) > 0
        with llm.model.programs.meters.reading() as again:
            assert not any(meter.calls for meter in again)


@pytest.mark.usefixtures("measured")
def test_what_is_predicted_is_what_plans_reckon_with_for_the_same_calls() -> None:
    graph, backend = llama_graph(2, 64, 128, 4, 2), cpu.make()
    backend.configure({"threads": 1})
    meter = Meter("prefill", Segment("cpu", graph, 0.0), Shape(Phase.PREFILL, 256), "cpu")
    meter.calls += [MeteredCall(100, 1, 0, 2.0), MeteredCall(30, 1, 100, 1.0)]
    late = {"final", "select", "head"}.intersection(node.name for node in graph.nodes)
    placed = [(node, backend, 0.0) for node in graph.nodes]
    shapes = [Shape(Phase.PREFILL, 100), Shape(Phase.PREFILL, 30, 100)]
    tasks = [Task(graph, shape, frozenset(late)) for shape in shapes]
    expected = sum(path_seconds(task, placed) for task in tasks)
    assert metered_seconds(meter, backend) == pytest.approx(expected, rel=0.01)
    without_logits = Meter(
        "prefill", meter.segment, meter.shape, "cpu", [MeteredCall(100, 0, 0, 2.0)]
    )
    less = metered_seconds(without_logits, backend)
    assert less is not None and less < path_seconds(tasks[0], placed)


def test_nothing_is_predicted_where_nothing_was_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu, "machine_profile", MachineProfile)
    segment = Segment("cpu", llama_graph(1, 64, 128, 4, 2), 0.0)
    meter = Meter("decode", segment, Shape.of(1), "cpu", [MeteredCall(1, 1, 0, 1.0)])
    assert metered_seconds(meter, cpu.make()) is None


def figures(measured_ms: float, predicted_ms: float | None) -> dict[str, Any]:
    common = {"segment": 1, "part": "decode", "backend": "cpu", "ops": 9, "calls": 2, "rows": 2}
    return {**common, "predicted_ms": predicted_ms, "measured_ms": measured_ms}


def test_the_median_run_counts_and_there_is_no_figure_where_none_was_predicted() -> None:
    (compared,) = median_figures([[figures(each, 3.0)] for each in (9.0, 2.0, 4.0)])
    assert (compared["measured_ms"], compared["ratio"]) == (4.0, 0.75)
    assert segment_lines([compared])[1].split()[-3:] == ["3.000", "4.000", "0.75"]
    (unknown,) = median_figures([[figures(4.0, None)]])
    assert (unknown["predicted_ms"], unknown["ratio"]) == (None, None)
    head, line = segment_lines([unknown])
    assert line.split()[-2:] == ["2", "4.000"]
    assert head.split() == ["segment", "back-end", "calls", "rows", "measured", "ms"]
    assert "predicted ms" in segment_lines([unknown, compared])[0]
    assert segment_lines([]) == []


@pytest.mark.usefixtures("measured")
def test_bench_compares_segments_on_all_places(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # What measures the machine has tests of its own; it takes seconds.
    monkeypatch.setattr(
        "edgerun.plan.calibration.processor.limits", lambda threads: Limits(MEASURED)
    )
    folder = str(bundle_of("llama", weights="int4"))
    arguments = ["-p", "40", "-n", "3", "--repeat", "2", "--place", "prefill=reference"]
    assert main(["bench", folder, *arguments, "--json"]) == 0
    segments = {each["part"]: each for each in json.loads(capsys.readouterr().out)["segments"]}
    assert set(segments) == {"prompts", "decode"}
    prompts, decode = segments["prompts"], segments["decode"]
    assert (prompts["backend"], prompts["calls"], prompts["rows"]) == ("reference", 1, 39)
    assert prompts["predicted_ms"] is prompts["ratio"] is None
    assert (decode["backend"], decode["calls"]) == ("cpu", 3)
    assert decode["ratio"] == pytest.approx(decode["predicted_ms"] / decode["measured_ms"], 0.01)
    assert main(["bench", folder, *arguments]) == 0
    lines = capsys.readouterr().out.splitlines()
    (head,) = (number for number, line in enumerate(lines) if line.startswith("segment "))
    assert "predicted ms" in lines[head] and lines[head + 1].startswith("prompts, ")


@pytest.mark.usefixtures("measured")
def test_nothing_is_predicted_of_experts_that_are_read_meanwhile(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(experts, "disk_profile", lambda folder, file, progress: NOMINAL_DISK)
    folder = bundle_of("olmoe", weights="int4")
    for memory in (None, "50%"):
        with edgerun.load(folder, backend="cpu", expert_memory=memory) as llm:
            with llm.model.programs.meters.reading() as meters:
                llm.generate([3], temperature=0, max_tokens=2)
            (decode,) = segment_figures(llm, meters)
        assert (decode["predicted_ms"] is None) == (memory is not None)


def test_figures_of_segments_that_never_ran_are_left_out() -> None:
    with edgerun.load(bundle_of("llama", weights="int4"), backend="cpu", threads=1) as llm:
        with llm.model.programs.meters.reading() as meters:
            llm.generate([3], temperature=0, max_tokens=1)
        assert [each["part"] for each in segment_figures(llm, meters)] == ["decode"]
