"""Large tables of embeddings: rows are read from the file, and give the same logits."""

import os
from pathlib import Path

import numpy as np
import pytest

from edgerun.backends import Shape, make_backend
from edgerun.backends.cpu import staged
from edgerun.backends.cpu.staged import StagedRows, can_stage
from edgerun.errors import BackendError
from edgerun.formats import dense
from edgerun.formats.base import PackedWeight
from edgerun.graph.ir import Constant, Graph, Node
from edgerun.model.bundle import open_bundle
from tests.conformance.kernels.cases.linear import packed_weight
from tests.support.bundles import bundle_of, runner

IDS = np.array([5, 0, 31, 5], np.int32)


def table_of(folder: Path) -> Constant:
    graph = open_bundle(folder).graph
    node = next(node for node in graph.nodes if node.op == "embedding")
    return graph.constants[node.inputs[1]]


@pytest.fixture
def every_table_is_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(staged, "LARGE_BYTES", 1)


STORED = [{"weights": "fp32"}, {"weights": "int4"}, {"weights": "int4", "scales": "fp16"}]


@pytest.mark.usefixtures("every_table_is_large")
@pytest.mark.parametrize("stored", STORED, ids=str)
def test_staged_rows_are_the_rows_of_the_table(stored: dict[str, str]) -> None:
    table = table_of(bundle_of("llama", **stored))
    assert can_stage(table)
    rows = StagedRows(table, max_rows=6)
    rows.fetch(IDS)
    np.testing.assert_array_equal(dense(rows.table)[rows.ids[: len(IDS)]], dense(table)[IDS])


@pytest.mark.parametrize("stored", STORED, ids=str)
def test_logits_do_not_depend_on_staging(
    stored: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = bundle_of("llama", **stored)
    logits = []
    for large in (staged.LARGE_BYTES, 1):
        monkeypatch.setattr(staged, "LARGE_BYTES", large)
        with runner(folder, "cpu") as model:
            logits += [model.run(IDS), model.run(IDS[:1])]
    np.testing.assert_array_equal(logits[0], logits[2])
    np.testing.assert_array_equal(logits[1], logits[3])


@pytest.mark.usefixtures("every_table_is_large")
@pytest.mark.parametrize("bad", [-1, 1 << 30])
def test_ids_outside_of_the_table_are_refused(bad: int) -> None:
    rows = StagedRows(table_of(bundle_of("llama", weights="int4")), max_rows=6)
    with pytest.raises(BackendError, match="outside of 0"):
        rows.fetch(np.array([1, bad], np.int32))


@pytest.mark.usefixtures("every_table_is_large")
def test_a_file_that_shrank_is_noticed(tmp_path: Path) -> None:
    data = tmp_path / "model.onnx.data"
    for file in bundle_of("llama", weights="int4").iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    rows = StagedRows(table_of(tmp_path), max_rows=6)
    os.truncate(data, data.stat().st_size - 1)
    with pytest.raises(BackendError, match="cut off"):
        rows.fetch(IDS)


def test_small_tables_and_tables_in_memory_stay_where_they_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    table = table_of(bundle_of("llama", weights="int4"))
    assert isinstance(table, PackedWeight)
    assert not can_stage(table)
    monkeypatch.setattr(staged, "LARGE_BYTES", 1)
    assert not can_stage(np.zeros((64, 64), np.float32))


@pytest.mark.parametrize("form", [("int4+", 32), ("int4^", 32)])
def test_tables_without_the_middle_zero_point_are_refused(form: tuple[str, int]) -> None:
    table = packed_weight(form, 8, 64, row_scale=False)
    node = Node("embedding", "rows", ("ids", "table"), ("out",), {})
    graph = Graph([node], ["ids"], ["out"], {"table": table})
    support = make_backend("cpu").supports(graph, node, Shape.of(1))
    assert not support
    assert "zero points or offsets" in support.reason
