"""Rows of several sequences with a window: who shares pages may still begin with another."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from edgerun.backends import CompileOptions, Shape, make_backend
from edgerun.graph.ir import Graph, Node, ValueShape
from edgerun.kernels import isa as isa_module
from edgerun.kernels.lang.isa import MODELS
from edgerun.kernels.run.instructions import fences
from edgerun.ops.registry import OPS
from edgerun.state import Batch, SequenceStore, same_attention
from tests.backends.test_attention import BOUNDS, assert_near, attention, projections

WINDOW, GROUP, STORED, FORK = 128, 4, 590, 574


def matched(spec: Any) -> tuple[SequenceStore, Batch]:
    """Two requests that begin like a stored conversation, one sooner than the other.

    The first one's window passes the edge of a page, which the second has no more.
    """
    store, ids = SequenceStore(spec, 1024, 4), list(range(1, STORED + 1))
    stored = store.open()
    rng = np.random.default_rng(3)
    for end in (256, 512, STORED):
        start = store.length(stored)
        store.reserve(stored, end)
        shape = (2, end - start, spec[0].kv_heads, spec[0].key_dim)
        keys, values = rng.standard_normal(shape).astype(np.float32) * 2
        store.write_block("past_key_values.0", stored, start, (keys, values))
        store.commit(stored, end, ids)
    store.close(stored)
    begun = [store.match(ids[:length]) for length in (FORK, STORED)]
    assert [cached for _, cached in begun] == [FORK, STORED]
    for sequence, cached in begun:
        store.reserve(sequence, cached + 4)
    return store, Batch.join([Batch.of([0] * 4, cached, sequence) for sequence, cached in begun])


def computed(spec: Any, node: Node, batch: Batch, store: SequenceStore, form: str) -> Any:
    graph = Graph([node], ["q", "k", "v"], ["out"], {})
    backend = make_backend("cpu", given={"threads": 1, "attention": form})
    executable = backend.compile(graph, Shape.of(64), CompileOptions(spec))
    try:
        return executable(batch, store, projections(spec, GROUP, batch.rows))["out"].copy()
    finally:
        executable.close()
        backend.close()


@pytest.mark.parametrize(
    ("dtype", "form"), [*((dtype, "exact") for dtype in BOUNDS), ("fp16", "fast")]
)
def test_rows_of_two_sequences_each_see_their_own_window(
    dtype: Any, form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if form == "fast":
        monkeypatch.setattr(isa_module, "selected_isa", lambda: MODELS["amx_model"])
    spec = same_attention(1, 2, 32, dtype, WINDOW)
    node = attention(spec, GROUP)
    store, batch = matched(spec)
    values = projections(spec, GROUP, batch.rows)
    output = computed(spec, node, batch, store, form)
    inputs = [values[name] for name in "qkv"]
    expected = OPS["attention"].evaluate(inputs, node.attrs, batch, store)[0]
    assert_near(output, expected, 0.008 if form == "fast" else BOUNDS[dtype])


def test_attention_to_another_layers_keys_waits_for_who_reads_its_buffer() -> None:
    """No write into the cache is between them, which makes others wait."""
    spec = same_attention(1, 2, 32, "fp16")
    first = attention(spec, GROUP)
    width = GROUP * spec[0].kv_heads * spec[0].key_dim
    named = {name: first.attrs[name] for name in OPS["shared_attention"].attributes}
    nodes = [
        first.replace(outputs=("seen",)),
        Node("scale", "double", ("x",), ("twice",), {"factor": 2.0}),
        Node("add", "sum", ("twice", "seen"), ("total",), {}),
        Node("shared_attention", "again", ("p",), ("other",), named),
    ]
    widths = {"q": width, "k": 64, "v": 64, "x": width, "p": width}
    shapes = {name: ValueShape(each) for name, each in widths.items()}
    graph = Graph(nodes, list(widths), ["total", "other"], {}, shapes=shapes)
    backend = make_backend("cpu", given={"threads": 2})
    executable = backend.compile(graph, Shape.of(16), CompileOptions(spec))
    steps = executable._binder.instructions  # type: ignore[attr-defined]
    labels = [step.label for step in steps]
    assert any(fences(steps)[labels.index("sum") : labels.index("again")])
    executable.close()
    backend.close()
