"""The second wall: what the checks of a graph or an emitter let through is not bound."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from edgerun.backends import CompileOptions, Shape, make_backend
from edgerun.backends.cpu.binder import Binder
from edgerun.backends.cpu.emit.registry import EMITTERS
from edgerun.backends.cpu.operands import WITH_CACHE, checked_arguments
from edgerun.errors import BackendError
from edgerun.graph import lower as lowering
from edgerun.kernels.attention.units import CACHE
from edgerun.kernels.jit.catalogue import kernels
from edgerun.model import bundle as bundles
from edgerun.model.bundle import open_bundle
from edgerun.state import same_attention
from tests.graph.test_check import CASES, write
from tests.support.bundles import bundle_of, runner

# Those that would touch foreign memory, or have a shape that no kernel can have.
BEYOND = [
    "wider gate",
    "wider down",
    "fewer kv heads",
    "smaller heads",
    "fewer layers",
    "long norm",
    "short bias",
]


ROWS = (1, 16, 64)


def compile_cpu(folder, rows):
    bundle = open_bundle(folder)
    config = bundle.config
    spec = same_attention(config.num_layers, config.num_kv_heads, config.head_dim)
    backend = make_backend("cpu")
    try:
        backend.compile(bundle.graph, Shape.of(rows), CompileOptions(spec))
    finally:
        backend.close()


@pytest.mark.parametrize("rows", ROWS)
def test_a_graph_that_fits_is_bound(rows):
    compile_cpu(bundle_of("llama", weights="int4"), rows)


@pytest.mark.parametrize("name", BEYOND)
def test_what_the_first_wall_lets_through_is_refused_by_the_second(name, tmp_path, monkeypatch):
    monkeypatch.setattr(lowering, "check", lambda graph: {})
    monkeypatch.setattr(bundles, "geometry", lambda graph: None)
    monkeypatch.setattr(bundles, "confirm", lambda *_: None)
    folder = write(CASES[name][0], tmp_path / "bundle")
    for rows in ROWS:
        with pytest.raises(BackendError, match="would touch|do not fit"):
            compile_cpu(folder, rows)


@pytest.mark.parametrize("op", ["gate", "linear", "select_rows", "attention"])
def test_a_buffer_that_an_emitter_makes_too_small_is_noticed(op, monkeypatch):
    """A planted mistake: the op's output gets a quarter of its width."""
    emitter, new = EMITTERS[op], Binder.new
    here = False

    def planted(binder, node, index):
        nonlocal here
        here = True
        emitter.emit(binder, node, index)
        here = False

    def narrow(binder, value, width, *others):
        buffer = new(binder, value, width, *others)
        if not here:
            return buffer
        small = np.zeros((len(buffer.array), width // 4), np.float32)
        binder.values[value] = replace(buffer, array=small)
        return binder.values[value]

    monkeypatch.setitem(EMITTERS, op, replace(emitter, emit=planted))
    monkeypatch.setattr(Binder, "new", narrow)
    monkeypatch.setattr(Binder, "dies_at", lambda *_: False)
    with pytest.raises(BackendError, match="would touch .* bytes of .*, which has"):
        compile_cpu(bundle_of("bitnet-packed", weights="ternary"), 64)


def test_ids_outside_of_the_table_are_refused():
    """Whoever calls a back-end by himself has not asked the engine."""
    with runner(bundle_of("llama", weights="int4"), "cpu") as model:
        rows = model.bundle.config.vocab_size
        for ids in ([rows], [-1], [3, rows], [3, -1]):
            with pytest.raises(BackendError, match=f"outside of 0..{rows - 1}"):
                model.run(ids)


@pytest.mark.parametrize(
    ("heads", "size"), [((1, 1), 1026), ((256, 1), 2), ((64, 1), 512), ((2**24, 2), 16)]
)
def test_queries_that_do_not_fit_the_stack_are_not_supported(heads, size):
    graph = open_bundle(bundle_of("llama", weights="int4")).graph
    node = next(node for node in graph.nodes if node.op == "attention")
    backend = make_backend("cpu")
    assert backend.supports(graph, node, Shape.of(1))
    sizes = {"num_heads": heads[0], "num_kv_heads": heads[1], "head_dim": size}
    large = node.replace(attrs={**node.attrs, **sizes})
    for rows in ROWS:
        assert (
            f"query heads of {size} elements"
            in backend.supports(graph, large, Shape.of(rows)).reason
        )


def checked(kernel, given, sizes):
    return checked_arguments(kernel, kernels()[kernel].signature, given, sizes)


def arguments(**changes):
    rows, x = np.zeros(1, np.int64), np.zeros((4, 32), np.float32)
    return {"rows": rows, "left": x, "right": x, "out": x, "width": 32} | changes


def test_memory_becomes_addresses():
    given = arguments()
    fields, arrays = checked("add", given, {"rows": 4, "lanes": 8})
    assert fields["left"] == given["left"].ctypes.data and fields["width"] == 32
    assert {id(array) for array in arrays} == {id(given["rows"]), id(given["left"])}


@pytest.mark.parametrize(
    ("changes", "rows", "message"),
    [
        ({}, 5, "would touch 640 bytes of left, which has 512"),
        ({"width": 33}, 4, "would touch 528 bytes"),
        ({"right": np.zeros((4, 31), np.float32)}, 4, "bytes of right, which has 496"),
        ({"out": np.zeros((32, 4), np.float32).T}, 4, "of out"),
        ({"out": None}, 4, "got None as out; expected memory"),
        ({"out": 4096}, 4, "got 4096 as out; expected memory"),
        ({"out": WITH_CACHE}, 4, "as out; expected memory"),
        ({"width": WITH_CACHE}, 4, "kernel add got nothing as width"),
        ({"table": np.zeros(1, np.int64)}, 4, "as table; expected a number"),
    ],
)
def test_operands_that_do_not_fit_are_refused(changes, rows, message):
    with pytest.raises(BackendError, match=message):
        checked("add", arguments(**changes), {"rows": rows})


def test_operands_that_are_missing_are_named():
    given = arguments()
    del given["right"], given["out"]
    with pytest.raises(BackendError, match="kernel add got nothing as out, right"):
        checked("add", given, {"rows": 4})


def test_addresses_of_the_cache_come_later():
    k = np.zeros((2, 8), np.float32)
    tokens = np.zeros(2, np.int32)
    fields, _ = checked(
        "cache_write",
        {"rows": np.ones(1, np.int64), "positions": tokens, "sequences": tokens}
        | {"k": k, "k_stride": 8, "v": k, "v_stride": 8, "kv_heads": 1}
        | dict.fromkeys(CACHE, WITH_CACHE),
        {"rows": 2, "head_dim": 8},
    )
    assert fields["key_data"] == 0
