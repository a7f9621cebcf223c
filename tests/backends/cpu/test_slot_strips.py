"""What the stand-in's process unpacks for the matrix unit."""

from __future__ import annotations

import numpy as np
import pytest

from edgerun.backends import CompileOptions, Shape, make_backend
from edgerun.backends.cpu import CpuBackend
from edgerun.backends.cpu.experts.weights import ExpertStore, ExpertWeights
from edgerun.backends.cpu.strips import bytes_a_thread
from edgerun.errors import BackendError
from edgerun.formats.stack import ExpertStack
from edgerun.graph.ir import Graph, Node, ValueShape
from edgerun.kernels import isa as isa_module
from edgerun.kernels.lang.isa import MODELS
from edgerun.offload.standin import process
from edgerun.plan.calibration.loads import random_weight

K, N, EXPERTS, ROWS = 768, 64, 2, 64
NAMES = ("gate", "up", "down")


def test_areas_have_room_for_what_lies_in_slots(monkeypatch: pytest.MonkeyPatch) -> None:
    """Graphs of slots have no constants, which areas are measured by elsewhere."""
    monkeypatch.setattr(isa_module, "selected_isa", lambda: MODELS["amx_model"])
    monkeypatch.setattr(process, "selected_isa", lambda: MODELS["amx_model"])
    sizes = (K, N), (K, N), (N, K)
    stacks = {
        name: ExpertStack(tuple(random_weight("int4", size, seed) for seed in range(EXPERTS)))
        for name, size in zip(NAMES, sizes, strict=True)
    }
    attributes = {"top_k": 1, "activation": "silu", "activations": "int8_block"}
    node = Node("experts", "slots", ("x", "routes", *NAMES), ("out",), attributes)
    shapes = {"x": ValueShape(K), "routes": ValueShape(EXPERTS)}
    whole = Graph([node], list(shapes), ["out"], dict(stacks), shapes=shapes)
    holder = make_backend("cpu", given={"threads": 1})
    assert isinstance(holder, CpuBackend)
    weights = holder.experts.prepare(whole, node)
    slots = process.SlotExperts(ExpertWeights.of(weights.layout, list(weights.memory)))
    backend = CpuBackend()
    backend.configure({"threads": 1})
    backend.use_experts(slots)
    graph = Graph([node], list(shapes), ["out"], {}, shapes=shapes)
    options = CompileOptions(process.NO_STATE)
    areas = backend.compile(graph, Shape.of(ROWS), options)._binder.areas  # type: ignore[attr-defined]
    assert areas.memory.shape[1] >= bytes_a_thread(whole)
    assert np.prod(areas.memory.shape) > bytes_a_thread(graph)
    # Were they too small, nothing would be compiled.
    monkeypatch.setattr(process.SlotExperts, "lengths", ExpertStore.lengths)
    other = CpuBackend()
    other.configure({"threads": 1})
    other.use_experts(slots)
    with pytest.raises(BackendError, match=r"a thread would unpack \d+ bytes"):
        other.compile(graph, Shape.of(ROWS), options)
