"""Which back-ends take part unasked, and what a user is told where they do not suffice."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import onnx
import pytest

import edgerun
import edgerun.backends.cpu as cpu
from edgerun.backends import registry
from edgerun.backends.base import Phase, Shape
from edgerun.backends.registry import SIMULATED, absent_backends, find_candidates, make_backend
from edgerun.env import settings
from edgerun.errors import InputError, UnsupportedError
from edgerun.graph.ir import Graph, Node
from edgerun.llm.options import LoadOptions
from edgerun.machine import profile
from edgerun.machine.devices import Call, DeviceProfile
from edgerun.machine.profile import MachineProfile, machine_profile
from edgerun.model.bundle import open_bundle
from edgerun.plan.planner import make_plan
from tests.llm.test_loading import altered
from tests.support.bundles import bundle_of


@pytest.fixture(autouse=True)
def uncalibrated(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """As if nothing had been measured here: devices that were measured take part unasked."""
    monkeypatch.setattr(profile, "read_profile", MachineProfile)
    machine_profile.cache_clear()
    yield
    monkeypatch.undo()
    machine_profile.cache_clear()


def test_slow_and_unlimited_back_ends_have_to_be_named() -> None:
    candidates = find_candidates()
    assert [backend.name for backend in candidates.backends] == ["cpu"]
    absent = absent_backends(candidates)
    for name in ("reference", "onnxruntime"):
        assert absent[name] == f"not asked for: --backend {name}"
        assert [backend.name for backend in find_candidates(name).backends] == [name]


def test_simulated_devices_are_offered_to_nobody_and_there_for_whoever_names_them() -> None:
    assert not set(SIMULATED) & absent_backends(find_candidates()).keys()
    with pytest.raises(InputError) as refused:
        make_backend("tpu")
    assert "openvino" in str(refused.value)
    for name in SIMULATED:
        assert name not in str(refused.value)
        assert make_backend(name).name == name


def test_a_back_end_of_the_environment_yields_to_what_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    changed = replace(settings(), backend="reference")
    monkeypatch.setattr(registry, "settings", lambda: changed)
    assert [backend.name for backend in find_candidates().backends] == ["reference"]
    assert [backend.name for backend in find_candidates("cpu").backends] == ["cpu"]
    with_device = find_candidates(device="standin:memory=4M,link=2G")
    assert [backend.name for backend in with_device.backends][0] == "standin"
    assert LoadOptions().named_backend == "reference"
    assert LoadOptions(device="standin:memory=4M").named_backend is None
    assert LoadOptions(place="decode=cpu").named_backend is None


def test_an_unknown_back_end_of_the_environment_is_refused_by_the_variable(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    changed = replace(settings(), backend="tpu")
    monkeypatch.setattr(registry, "settings", lambda: changed)
    with pytest.raises(InputError, match="EDGERUN_BACKEND='tpu' names no back-end: there are cpu"):
        find_candidates()


def test_a_measured_device_whose_back_end_is_gone_is_absent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    devices = {
        f"{title}, 1.0": DeviceProfile({"int8_block/int4": (Call(64, 64, 1.0),)}, version="1.0")
        for title in ("removed:0", "cpu:0")
    }
    speeds = MachineProfile(bandwidth={1: 1e9}, rates={"x": {1: 1e9}}, fork_join_s={1: 1e-6})
    monkeypatch.setattr(profile, "read_profile", lambda: replace(speeds, devices=devices))
    candidates = find_candidates()
    assert [backend.name for backend in candidates.backends] == ["cpu"]
    absent = absent_backends(candidates)
    assert "no back-end is called 'removed'" in absent["removed:0"]
    assert "no devices" in absent["cpu:0"]


@pytest.mark.parametrize("fork_join_s", [5e-3, 10.0])
def test_no_profile_moves_a_model_to_the_reference(
    monkeypatch: pytest.MonkeyPatch, fork_join_s: float
) -> None:
    graph = open_bundle(bundle_of("llama")).graph
    monkeypatch.setattr(cpu, "machine_profile", MachineProfile)
    usual = make_plan(graph, find_candidates().backends)
    partial = MachineProfile(fork_join_s={2: fork_join_s})
    monkeypatch.setattr(cpu, "machine_profile", lambda: partial)
    assert make_plan(graph, find_candidates().backends).explain() == usual.explain()
    whole = replace(partial, bandwidth={1: 1e9}, rates={"x": {1: 1e9}})
    monkeypatch.setattr(cpu, "machine_profile", lambda: whole)
    for segments in make_plan(graph, find_candidates().backends).segments.values():
        assert [segment.backend for segment in segments] == ["cpu"]


def test_an_unknown_op_is_refused_by_name_and_starts_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("onnxruntime.InferenceSession", None)
    source = bundle_of("llama")
    model = onnx.load(str(source / "model.onnx"), load_external_data=False)
    last = next(node for node in model.graph.node if "logits" in node.output)
    last.output[0] = "before"
    model.graph.node.append(onnx.helper.make_node("Celu", ["before"], ["logits"], "odd/Celu"))
    folder = altered(source, tmp_path / "b", "model.onnx", model.SerializeToString())
    with pytest.raises(UnsupportedError, match="Celu") as caught:
        edgerun.load(folder)
    assert "odd/Celu" in str(caught.value)
    assert "--backend onnxruntime" in str(caught.value)


def test_a_shape_without_a_kernel_names_the_back_end_that_takes_it() -> None:
    attributes = {"head_dim": 3, "factor": 1.0}
    graph = Graph([Node("rotary", "turn", ("x",), ("y",), attributes)], ["x"], ["y"], {})
    with pytest.raises(UnsupportedError, match="turn: head_dim 3 is odd; --backend reference runs"):
        make_plan(graph, find_candidates().backends)
    plan = make_plan(graph, find_candidates("reference").backends)
    assert [segment.backend for segment in plan.segments[Phase.DECODE]] == ["reference"]


def test_a_refused_graph_is_not_planned_whatever_its_nodes_are_called() -> None:
    """Its nodes may look like ours: a back-end that reads the file itself is the one that knows."""
    graph = replace(open_bundle(bundle_of("llama", weights="int4")).graph, refusal="not this one")
    with pytest.raises(UnsupportedError, match="prefill: cpu: not this one; if you trust"):
        make_plan(graph, find_candidates().backends)
    plan = make_plan(graph, find_candidates("onnxruntime").backends)
    assert [segment.backend for segment in plan.segments[Phase.DECODE]] == ["onnxruntime"]


@pytest.mark.parametrize("name", ["cpu", "reference"])
def test_an_op_without_a_file_is_not_supported(name: str) -> None:
    graph = Graph([Node("linear_rows", "x", ("x",), ("y",))], ["x"], ["y"], {})
    assert "'linear_rows'" in make_backend(name).supports(graph, graph.nodes[0], Shape.of(1)).reason
