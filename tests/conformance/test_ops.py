"""Every example of every op on every back-end that supports it, against the op's definition.

Every kernel on every instruction set is ``tests/conformance/kernels/test_kernels.py``.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from edgerun.backends import CompileOptions, Shape
from edgerun.backends.base import Backend
from edgerun.backends.registry import backend_names, make_backend
from edgerun.graph.shapes import node_work, output_shapes, value_shapes
from edgerun.ops.registry import OPS
from edgerun.state import AttentionState
from tests.conformance.examples import CASES, Case

COMPLETE = ("cpu", "reference")  # run every op


def supported() -> Iterator[tuple[str, Case]]:
    """What runs where, of the back-ends that are here and need no device."""
    for name in backend_names():
        backend = make_backend(name)
        for case in CASES if backend.probe() else ():
            graph = case.graph()
            if backend.supports(graph, graph.nodes[0], Shape.of(case.rows)):
                yield name, case
        backend.close()


PAIRS = list(supported())


@pytest.fixture(scope="module")
def backends() -> Iterator[dict[str, Backend]]:
    names = dict.fromkeys(name for name, _ in PAIRS)
    backends = {name: make_backend(name, given={"threads": 2}) for name in names}
    yield backends
    for backend in backends.values():
        backend.close()


def test_some_back_ends_run_every_op() -> None:
    for name in COMPLETE:
        assert [case for backend, case in PAIRS if backend == name] == CASES


@pytest.mark.parametrize(("name", "case"), PAIRS, ids=str)
def test_a_back_end_computes_what_the_definition_says(
    name: str, case: Case, backends: dict[str, Backend]
) -> None:
    graph, spec, shape = case.graph(), case.spec(), Shape.of(case.rows)
    expected = case.expected()
    cache = case.cache(spec)
    batch = case.batch(cache)
    executable = backends[name].compile(graph, shape, CompileOptions(spec))
    outputs = executable(batch, cache, case.values())
    for output, reference in expected.items():
        assert outputs[output].shape == reference.shape
        assert outputs[output].dtype == reference.dtype
        error = np.abs(outputs[output].astype(np.float64) - reference).max(initial=0)
        assert error <= OPS[case.op].tolerance * max(float(np.abs(reference).max(initial=0)), 1e-30)
    executable.close()


def test_every_op_has_examples() -> None:
    assert {case.op for case in CASES} == set(OPS)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_what_an_op_says_of_itself_is_what_it_does(case: Case) -> None:
    """Shapes, types and work are derived without computing anything."""
    op, graph = OPS[case.op], case.graph()
    (node,) = graph.nodes
    assert set(node.attrs) == set(op.attributes)
    assert all(rule.allows(node.attrs[name]) for name, rule in op.attributes.items())
    shapes = output_shapes(graph, node, value_shapes(graph))
    assert list(shapes) == list(node.outputs)
    for name, array in case.expected().items():
        assert (array.shape[1], array.dtype.name) == (shapes[name].width, shapes[name].dtype)
        assert np.isfinite(array).all()
        selected = op.selects or bool(case.example.selected)
        assert shapes[name].selected == selected and (len(array) == case.rows or selected)
    work = node_work(graph, node, graph.shapes)
    assert min(work.macs, work.cached_macs, work.nbytes, work.row_nbytes) >= 0
    stored = sum(constant.nbytes for constant in graph.constants.values())
    assert work.nbytes + work.row_nbytes * case.rows <= stored * max(1, case.rows)
    # Attention multiplies with all that it keeps; what keeps no values reads the latest tokens.
    declare = op.state or op.reads
    state = declare(case.example.attributes) if declare else None
    assert bool(work.cached_macs) == (isinstance(state, AttentionState) and state.value_dim > 0)


def test_a_row_reads_a_row_of_a_table() -> None:
    for case in [case for case in CASES if case.op == "embedding"]:
        graph = case.graph()
        work, table = node_work(graph, graph.nodes[0], graph.shapes), graph.constants["table"]
        assert (work.nbytes, work.row_nbytes * table.shape[0]) == (0, table.nbytes)
