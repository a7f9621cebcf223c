"""Experts whose gate is their up projection: squared ReLU, which has no projection of its own."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

import edgerun
from edgerun.backends.cpu import binder
from edgerun.backends.cpu.experts.layout import SlotLayout, form_of
from edgerun.backends.cpu.experts.program import dispatch
from edgerun.backends.cpu.experts.weights import ExpertStore
from edgerun.graph.lower import lower
from edgerun.graph.onnx_reader import read_graph
from edgerun.graph.shapes import node_work, value_shapes
from edgerun.kernels.isa import selected_isa
from edgerun.kernels.jit.service import compiled
from edgerun.kernels.run.instructions import Code, Instruction
from edgerun.kernels.run.program import Program
from tests.support.bundles import bundle_of, runner

NAME = "nemotron_h-experts"


@pytest.mark.parametrize("weights", ["fp32", "int8"])
def test_both_are_one_matrix_in_memory(weights: str) -> None:
    path = bundle_of(NAME, weights=weights) / "model.onnx"
    graph = lower(read_graph(path, path.read_bytes()))
    node = next(node for node in graph.nodes if node.op == "experts")
    assert node.inputs[2] == node.inputs[3] and node.attrs["activation"] == "relu"
    isa = selected_isa()
    store = ExpertStore(isa)
    gate, up, down = store.prepare(graph, node).matrices
    assert gate.offsets == up.offsets != down.offsets
    stacks = [graph.constants[name].matrices[0] for name in node.inputs[3:5]]
    work = node_work(graph, node, value_shapes(graph))
    matrices = [graph.constants[name] for name in dict.fromkeys(node.inputs[2:5])]
    assert work.expert_nbytes == sum(stack.nbytes for stack in matrices) // work.experts
    assert work.macs == 2 * work.chosen * math.prod(matrices[0].matrices[0].shape)
    rounding = node.attrs["activations"]
    forms = [form_of(each, rounding, isa, row_scale=False, halves=False) for each in stacks]
    assert store.slot_bytes(graph, node) == SlotLayout(forms).nbytes


@pytest.mark.parametrize(
    ("name", "weights"), [("nemotron_h", "int8"), (NAME, "int8"), (NAME, "fp32")]
)
def test_up_projections_are_multiplied_by_once(
    name: str, weights: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    matrices: list[int] = []
    labels: list[str] = []
    begin = Program.__init__

    def noted(kernel: str, progress: Any, **params: Any) -> Code:
        if "gated" in kernel:
            matrices.append(params["matrices"])
        return compiled(kernel, progress, **params)

    def listed(program: Program, steps: list[Instruction], *rest: Any) -> None:
        labels.extend(step.label for step in steps)
        begin(program, steps, *rest)

    monkeypatch.setattr(binder, "compiled", noted)
    monkeypatch.setattr(dispatch, "compiled", noted)
    monkeypatch.setattr(Program, "__init__", listed)
    with runner(bundle_of(name, weights=weights), "cpu") as model:
        model.run([1, 2, 3])
    assert set(matrices) == (set() if weights == "fp32" else {1})
    assert not any(label.endswith(("/up", "/up_proj/MatMulNBits")) for label in labels)


def test_replies_are_the_same_where_experts_are_read_meanwhile() -> None:
    path, prompt = bundle_of(NAME, weights="int8"), [1 + 7 * place % 200 for place in range(40)]
    replies = []
    for memory in (None, "60%"):
        with edgerun.load(path, backend="cpu", context=128, expert_memory=memory) as llm:
            replies.append(llm.generate(prompt, temperature=0, max_tokens=12, ignore_eos=True).ids)
            logits = np.concatenate([block.copy() for block in llm.logits(prompt)])
            replies.append(logits.tolist())
    assert replies[:2] == replies[2:]
