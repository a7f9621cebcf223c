"""How much a model multiplies, counted from its graph."""

from __future__ import annotations

import pytest

from edgerun.model.bundle import open_bundle
from edgerun.plan.workload import Workload, workload
from tests.support.bundles import bundle_of


def test_matrices_count_once_and_apart_what_only_wanted_rows_need() -> None:
    bundle = open_bundle(bundle_of("llama"))
    config = bundle.config
    work = workload(bundle.graph)
    linear = [node for node in bundle.graph.nodes if node.op == "linear"]
    sizes = [bundle.graph.constants[node.inputs[1]].shape for node in linear]
    assert work.layers == config.num_layers
    assert work.row_macs + work.logit_macs == sum(n * k for n, k in sizes)
    # Of the last layer, all rows need keys and values alone.
    per_layer = [n * k for n, k in sizes[-8:-1]]
    query, keys, values, *others = per_layer
    assert keys == values
    head = sizes[-1][0] * sizes[-1][1]
    assert work.logit_macs == head + query + sum(others)
    heads = sizes[0][0] // config.head_dim
    assert work.attention_macs == 2 * config.num_layers * heads * config.head_dim


@pytest.mark.parametrize(("rows", "logit_rows", "start"), [(1, 1, 0), (1, 1, 9), (5, 1, 3)])
def test_rows_see_what_came_before(rows: int, logit_rows: int, start: int) -> None:
    work = Workload(row_macs=100, logit_macs=7, attention_macs=3, layers=1)
    seen = sum(start + row + 1 for row in range(rows))
    assert work.macs(rows, logit_rows, start) == 100 * rows + 7 * logit_rows + 3 * seen
