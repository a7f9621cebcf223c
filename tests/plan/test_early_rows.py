"""Of the last layer, rows that nobody asked for have keys and values alone."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from edgerun.backends import CompileOptions, Shape
from edgerun.backends.base import Phase
from edgerun.backends.registry import make_backend
from edgerun.graph.ir import Graph
from edgerun.model.bundle import open_bundle
from edgerun.ops.base import Kind
from edgerun.ops.registry import OPS
from edgerun.plan.early_rows import select_early
from edgerun.plan.states import states_of
from edgerun.state import Batch, SequenceStore
from tests.support.bundles import NAMES, bundle_of

ROWS = 48


def batches(store: SequenceStore) -> Iterator[Batch]:
    """Rows of two sequences, of which all, some, the last or none are wanted."""
    slots = [store.open() for _ in range(2)]
    for slot in slots:
        store.reserve(slot, 6 * 20)
    for step, selection in enumerate(("last", "none", "all", "some", "last", "every third")):
        parts = [
            Batch.of(
                [(7 * index + 31 * step + slot) % 90 for index in range(count)],
                step * count,
                slot,
                logits=selection if selection in ("last", "none", "all") else "all",
            )
            for slot, count in zip(slots, (20, 3), strict=True)
        ]
        batch = Batch.join(parts)
        rows = {"some": [1, 2, 19, 21], "every third": [*range(0, 23, 3)]}.get(selection)
        if rows is not None:
            batch = Batch(batch.ids, batch.positions, batch.sequences, np.int32(rows))
        yield batch


def logits_of(graph: Graph, folder: Path, backend: str) -> list[np.ndarray]:
    """What a graph makes of the batches."""
    config = open_bundle(folder).config
    states = states_of(graph, config, "fp16")
    store = SequenceStore(states, 256, 2)
    runs = make_backend(backend, given={"threads": 2})
    executable = runs.compile(graph, Shape(Phase.PREFILL, ROWS), CompileOptions(states))
    logits = [executable(batch, store)["logits"].copy() for batch in batches(store)]
    executable.close()
    runs.close()
    return logits


# What NumPy multiplies depends on the number of rows in the last bits.
@pytest.mark.parametrize(("backend", "tolerance"), [("cpu", 0.0), ("reference", 1e-5)])
@pytest.mark.parametrize(
    ("name", "weights"),
    [
        ("llama", "int4"),
        ("bitnet-packed", "ternary"),
        ("mistral", "fp32"),
        ("gpt_oss", "int4"),
        ("lfm2", "int4"),
        ("granitemoehybrid-mamba", "int4"),
        ("falcon_h1", "int4"),
        ("nemotron_h", "int4"),
    ],
)
def test_no_bit_of_a_wanted_row_changes(
    name: str, weights: str, backend: str, tolerance: float
) -> None:
    folder = bundle_of(name, weights=weights)
    graph = open_bundle(folder).graph
    early = select_early(graph)
    assert early is not graph
    for before, after in zip(
        logits_of(graph, folder, backend), logits_of(early, folder, backend), strict=True
    ):
        np.testing.assert_allclose(after, before, rtol=0, atol=tolerance)


@pytest.mark.parametrize("name", NAMES)
def test_of_the_last_layer_all_rows_have_what_it_remembers_alone(name: str) -> None:
    graph = open_bundle(bundle_of(name, weights="int4")).graph
    early = select_early(graph)
    everywhere = {node.name for node in early.nodes if not early.shapes[node.outputs[0]].selected}
    states = [node for node in graph.nodes if OPS[node.op].state]
    needed, values = set(), set()
    for last in states:
        if last.attrs["layer"] == states[-1].attrs["layer"]:  # of which there may be two
            rows = [each for each in OPS[last.op].inputs if each.kind is Kind.ROWS]
            operands = zip(OPS[last.op].inputs, last.inputs, strict=False)
            values |= {name for operand, name in operands if operand.every_row}
            if all(operand.every_row for operand in rows):  # what it makes has a row for each, too
                needed.add(last.name)
    producers = graph.producers()
    while values:
        node = producers.get(values.pop())
        if node is not None and node.name not in needed:
            needed.add(node.name)
            values.update(node.inputs)
    assert everywhere == needed
    assert {node.op for node in early.nodes} == {node.op for node in graph.nodes}


def test_a_graph_without_wanted_rows_stays() -> None:
    graph = open_bundle(bundle_of("llama", weights="int4")).graph
    early = select_early(graph)
    assert select_early(early) is early
    body = Graph(graph.nodes[:5], [], [graph.nodes[4].outputs[0]], graph.constants)
    assert select_early(body) is body
