"""Programs and their memory: what is added to itself, Ctrl-C while they are bound, and forks."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import pytest

from edgerun.backends import CompileOptions, Shape, cpu, make_backend
from edgerun.backends.cpu.strips import StripMemory
from edgerun.errors import InputError
from edgerun.formats import format_named
from edgerun.graph.ir import Graph, Node, ValueShape
from edgerun.ops.registry import OPS
from edgerun.state import Batch, SequenceStore, same_attention
from tests.backends.test_attention import append, assert_near, attention, projections

WIDTH = 64


@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("form", [None, "int4"])
def test_a_product_is_added_to_what_it_is_of(form: str | None, rows: int) -> None:
    """With activations as they are: what is multiplied is not overwritten meanwhile."""
    rng = np.random.default_rng(1)
    floats = rng.standard_normal((WIDTH, WIDTH)).astype(np.float32) / 8
    weight = floats if form is None else format_named(form).pack(floats, 32)
    nodes = [
        Node("scale", "same", ("x",), ("y",), {"factor": 1.0}),
        Node("linear", "layer", ("y", "w", "", "y"), ("out",), {"activations": "float"}),
    ]
    graph = Graph(nodes, ["x"], ["out"], {"w": weight}, shapes={"x": ValueShape(WIDTH)})
    x = {"x": rng.standard_normal((rows, WIDTH)).astype(np.float32)}
    output, expected = (computed(name, graph, rows, x) for name in ("cpu", "reference"))
    assert_near(output, expected, 1e-6)


def computed(name: str, graph: Graph, rows: int, values: Any) -> Any:
    backend = make_backend(name)
    executable = backend.compile(graph, Shape.of(rows), CompileOptions(()))
    store = SequenceStore((), WIDTH, 1)
    sequence = store.open()
    store.reserve(sequence, rows)
    output = executable(Batch.of([0] * rows, 0, sequence), store, values)["out"].copy()
    executable.close()
    backend.close()
    return output


def test_ctrl_c_while_a_program_is_bound_to_another_store_leaves_it_bound_to_none() -> None:
    spec = same_attention(1, 2, 32, "fp16")
    node = attention(spec, 4)
    graph = Graph([node], ["q", "k", "v"], ["out"], {})
    values = projections(spec, 4, 1)
    first, second = (SequenceStore(spec, 256, 1) for _ in range(2))
    sequence = first.open()
    append(first, sequence, 70)
    first.reserve(sequence, 71)
    second.open()
    batch = Batch.of([0], 70, sequence)
    backend = make_backend("cpu", given={"threads": 1})
    executable = backend.compile(graph, Shape.of(1), CompileOptions(spec))
    expected = executable(batch, first, values)["out"].copy()
    patches = executable._binder.patches  # type: ignore[attr-defined]
    last = patches[-1]
    own = last.value

    def interrupt(store: SequenceStore) -> int:
        raise KeyboardInterrupt

    last.value = interrupt
    with pytest.raises(KeyboardInterrupt):
        executable(batch, second, values)
    last.value = own
    np.testing.assert_array_equal(executable(batch, first, values)["out"], expected)
    inputs = [values[name] for name in "qkv"]
    assert_near(expected, OPS["attention"].evaluate(inputs, node.attrs, batch, first)[0], 3e-6)
    executable.close()
    backend.close()


def test_threads_that_are_asked_for_need_no_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """An option of the command line wins over a variable, also over one that is no use."""

    def refuse(asked: int | None) -> int:
        raise InputError("EDGERUN_THREADS is 64")

    monkeypatch.setattr(cpu, "worker_threads", refuse)
    backend = cpu.CpuBackend()
    backend.configure({"threads": 1})
    assert backend.threads == 1
    with pytest.raises(InputError, match="EDGERUN_THREADS is 64"):
        assert cpu.CpuBackend().threads


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")  # it may have threads
def test_a_forked_child_finds_no_strip_in_use() -> None:
    """Who was using it is a thread of the parent's, and the child would wait for it for ever."""
    memory = StripMemory(2)
    weight = format_named("int8").pack(np.ones((WIDTH, WIDTH), np.float32), 32)
    areas = memory.for_graph(Graph([], [], [], {"w": weight}))
    assert areas is not None
    areas.taken[:, 0] = 1
    child = os.fork()
    if child == 0:  # an assertion that fails would go on with the parent's tests
        os._exit(int(areas.taken.any()))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert areas.taken[:, 0].all()
