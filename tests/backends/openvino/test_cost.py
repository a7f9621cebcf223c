"""What OpenVINO's devices cost: what was measured of them, with this version of their driver."""

from __future__ import annotations

import numpy as np
import pytest

from edgerun.backends import openvino
from edgerun.backends.base import Phase, Shape
from edgerun.backends.estimates import kept_bytes
from edgerun.backends.openvino import OpenvinoBackend
from edgerun.formats import format_named
from edgerun.formats.base import PackedWeight
from edgerun.graph.ir import Graph, Node
from edgerun.machine.devices import ATTENTION, ELEMENTS, Call, DeviceProfile, device_key
from edgerun.machine.profile import MachineProfile
from edgerun.model.bundle import open_bundle
from edgerun.plan.places import Places, placed_candidates
from edgerun.plan.routes import plan_for
from edgerun.plan.streaming import held_bytes
from tests.support.bundles import bundle_of

MEASURED = DeviceProfile(
    calls={
        "float/int4": (Call(64, 64_000, 2e-3),),
        ELEMENTS: (Call(64, 64_000, 2e-3),),
        ATTENTION: (Call(64, 64_000, 2e-3, 256),),
    },
    call_s=1e-3,
    launch_s=5e-3,
    load_bytes_s=1e6,
    store_bytes_s=2e6,
    version="OpenVINO 2027.1.0",
    measured="2026-11-22",
)
SHAPE = Shape(Phase.PREFILL, 65, 100)


@pytest.fixture
def backend(monkeypatch: pytest.MonkeyPatch) -> OpenvinoBackend:
    monkeypatch.setattr("edgerun.backends.openvino.devices.installed_version", lambda: "2027.1.0")
    profile = MachineProfile(
        bandwidth={1: 1e9},
        rates={"float/int4": {1: 1e9}},
        fork_join_s={1: 1e-6},
        devices={device_key("openvino:CPU", "OpenVINO 2027.1.0"): MEASURED},
    )
    monkeypatch.setattr(openvino, "machine_profile", lambda: profile)
    openvino_backend = openvino.make()
    openvino_backend.use_device("CPU")
    return openvino_backend


@pytest.fixture(scope="module")
def graph() -> Graph:
    return open_bundle(bundle_of("llama", weights="int4")).graph


def test_nodes_cost_their_work_in_padded_calls(backend: OpenvinoBackend, graph: Graph) -> None:
    linear = next(node for node in graph.nodes if node.op == "linear")
    rows, columns = graph.constants[linear.inputs[1]].shape
    assert backend.cost(graph, linear, SHAPE) == pytest.approx(128 * rows * columns / 64e6)
    norm = next(node for node in graph.nodes if node.op == "rms_norm")
    width = graph.shapes[norm.outputs[0]].width
    assert backend.cost(graph, norm, SHAPE) == pytest.approx(128 * width / 64e6)


def test_attention_reads_the_past_for_every_call(backend: OpenvinoBackend, graph: Graph) -> None:
    node = next(node for node in graph.nodes if node.op == "attention")
    heads, kv_heads, dim = (node.attrs[name] for name in ("num_heads", "num_kv_heads", "head_dim"))
    assert kept_bytes(node) == 4 * 2 * kv_heads * dim
    work = 2 * 64 * 2 * heads * dim * (256 + 64) / 64e6
    assert backend.cost(graph, node, SHAPE) == pytest.approx(
        work + 2 * 100 * kept_bytes(node) / 1e6
    )


def test_what_was_measured_with_this_driver_is_what_counts(backend: OpenvinoBackend) -> None:
    assert backend.device_profile() is MEASURED
    assert backend.cost_basis() == "measured 2026-11-22 with OpenVINO 2027.1.0"


@pytest.mark.parametrize(
    ("device", "name", "bits"),
    [
        ("CPU", "ternary", 2), ("CPU", "int4", 4), ("CPU", "float32", 32),
        ("NPU", "ternary", 4), ("NPU", "int4", 4), ("NPU", "int8", 8), ("GPU", "float32", 16),
    ],
)  # fmt: skip
def test_weights_are_counted_as_devices_hold_them(device: str, name: str, bits: int) -> None:
    """An NPU has no codes of two bits, so ternary weights take there what those of four do."""
    n, k, block = 8, 256, 128
    values = np.random.default_rng(0).standard_normal((n, k)).astype(np.float32)
    weight = values if name == "float32" else format_named(name).pack(values, block)
    scales = 0 if isinstance(weight, np.ndarray) else weight.scales.nbytes
    graph = Graph([Node("linear", "l", ("x", "w"), ("y",), {})], ["x"], ["y"], {"w": weight})
    backend = openvino.make()
    backend.use_device(device)
    assert backend.weight_bytes(graph, graph.nodes[0], "w") == n * k * bits // 8 + scales
    table = Node("embedding", "e", ("ids", "w"), ("y",), {})
    assert backend.weight_bytes(graph, table, "w") == 0


def test_a_plan_adds_up_what_each_back_end_holds() -> None:
    """Of prompts without a device's embeddings; two bits are four, and floats are halves there."""
    graph = open_bundle(bundle_of("bitnet-packed", weights="ternary")).graph
    held, segments = {}, []
    for device in ("openvino:CPU", "openvino:NPUW-CPU"):
        candidates = placed_candidates(Places.read(f"prefill={device}"), {"threads": 1})
        planned = plan_for(graph, candidates)
        held |= held_bytes(planned, candidates.every())
        assert planned.prompts
        segments = [*planned.prompts.segments]
    nodes = [node for part in segments for node in part.graph.nodes if node.op != "embedding"]
    names = {name for node in nodes for name in node.inputs if name in graph.constants}
    packed = [graph.constants[name] for name in names]
    codes = sum(each.codes.nbytes for each in packed if isinstance(each, PackedWeight))
    floats = sum(each.size for each in packed if not isinstance(each, PackedWeight))
    assert codes and floats
    assert held["openvino:NPUW-CPU"] - held["openvino:CPU"] == codes - 2 * floats
    assert held["cpu"] > held["openvino:CPU"]


@pytest.mark.parametrize("name", ["NPU", "GPU", "GPU.1"])
def test_what_nobody_tried_is_said_in_plans(name: str) -> None:
    backend = openvino.make()
    backend.use_device(name)
    assert backend.cost_basis().endswith("of Intel's; edgerun was never tried on one")


def test_what_was_measured_with_another_driver_counts_as_nothing(
    backend: OpenvinoBackend, monkeypatch: pytest.MonkeyPatch, graph: Graph
) -> None:
    monkeypatch.setattr("edgerun.backends.openvino.devices.installed_version", lambda: "2027.1.1")
    assert backend.device_profile() is None
    assert "measured with OpenVINO 2027.1.0 only" in backend.cost_basis()
    assert "--calibrate" in backend.cost_basis()
    assert backend.cost(graph, graph.nodes[1], SHAPE) > 0


def test_what_can_be_measured_stands_for_itself(backend: OpenvinoBackend) -> None:
    pytest.importorskip("openvino")
    assert backend.measures().get("CPU") == "OpenVINO 2027.1.0"
    assert "NPUW-CPU" not in backend.measures()
