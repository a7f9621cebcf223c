"""Every example of every op on OpenVINO's CPU, against the op's definition."""

from __future__ import annotations

import numpy as np
import pytest

from edgerun.backends import CompileOptions, Shape
from edgerun.backends.base import Phase
from edgerun.backends.openvino.devices import find_device
from edgerun.backends.openvino.executable import OpenvinoExecutable
from edgerun.backends.openvino.matrices import Stored, make_matrix
from edgerun.backends.openvino.session import Session
from edgerun.backends.openvino.translate.registry import TRANSLATORS
from edgerun.backends.reference import ReferenceExecutable
from edgerun.formats import dense, format_named
from edgerun.formats.base import PackedWeight
from edgerun.ops.linear import linear
from edgerun.ops.registry import OPS
from tests.conformance.examples import CASES, Case

openvino = pytest.importorskip("openvino")

# Of the largest magnitude. Where activations are rounded, a last bit may turn one over.
TOLERANCE = 1e-5
ROUNDED = 5e-3


@pytest.fixture(scope="module")
def session() -> Session:
    return Session(find_device("CPU"), threads=1)


def test_ops_have_a_translation_but_for_those_that_the_processor_runs() -> None:
    others = {"experts", "route", "short_conv", "gated_delta", "latent_attention"}
    others |= {"state_space", "group_rms_norm"}
    assert set(OPS) - set(TRANSLATORS) == others
    assert set(TRANSLATORS) <= set(OPS)


TRANSLATED = [case for case in CASES if case.op in TRANSLATORS]


@pytest.mark.parametrize("case", TRANSLATED, ids=str)
def test_a_translation_computes_what_the_definition_says(case: Case, session: Session) -> None:
    graph, spec, expected = case.graph(), case.spec(), case.expected()
    if case.example.attributes.get("activations") == "int8_block":  # a runtime's own way
        given = case.example.inputs
        expected = {
            "out_made": linear(
                given["x"], given["weight"], given.get("bias"), given.get("residual")
            )
        }
    cache = case.cache(spec)
    batch = case.batch(cache)
    shape = Shape(Phase.PREFILL, case.rows)
    options = CompileOptions(spec, fallback=lambda segment, shape: ReferenceExecutable(segment))
    executable = OpenvinoExecutable(graph, shape, session, options)
    outputs = executable(batch, cache, case.values())
    assert not session.failure
    for output, reference in expected.items():
        assert (outputs[output].shape, outputs[output].dtype) == (reference.shape, reference.dtype)
        error = np.abs(outputs[output].astype(np.float64) - reference).max()
        rounds = case.example.attributes.get("activations") == "int8_row"
        assert error <= (ROUNDED if rounds else TOLERANCE) * np.abs(reference).max()


# What looks at the size of a row, and what else it reads.
SIZED = {"rms_norm": (), "layer_norm": (), "match_magnitude": ("like",), "gaussian_top_k": ()}


@pytest.mark.parametrize("op", SIZED)
@pytest.mark.parametrize("size", [1e-3, 1e-2, 1.0, 200.0, 5000.0])
def test_sizes_do_not_overflow_in_half_precision(size: float, op: str) -> None:
    (case, *_) = [each for each in CASES if each.op == op and each.rows == 3]
    session = Session(find_device("NPUW-CPU"), threads=1)
    graph, spec = case.graph(), case.spec()
    options = CompileOptions(spec, fallback=lambda segment, shape: ReferenceExecutable(segment))
    executable = OpenvinoExecutable(graph, Shape(Phase.PREFILL, 3), session, options)
    x = np.random.default_rng(2).standard_normal((3, 64)).astype(np.float32) * np.float32(size)
    values = {"x": x, **{name: x[::-1].copy() for name in SIZED[op]}}
    cache = case.cache(spec)
    output = executable(case.batch(cache), cache, values)["out_made"]
    constants = {name: case.example.inputs[name] for name in graph.constants}
    expected = OPS[op].define(**values, **constants, **case.example.attributes)
    assert not session.failure
    assert np.abs(output - expected).max() <= 3e-3 * np.abs(expected).max()


def with_zeros(packed: PackedWeight) -> PackedWeight:
    rng = np.random.default_rng(1)
    nbytes = -(-packed.blocks * packed.bits // 8)
    zeros = rng.integers(0, 256, (packed.shape[0], nbytes)).astype(np.uint8)
    return PackedWeight(
        packed.format, packed.shape, packed.block, packed.codes, packed.scales, zeros
    )


@pytest.mark.parametrize("stored", Stored)
@pytest.mark.parametrize("zeros", [False, True])
@pytest.mark.parametrize("name", ["ternary", "int2", "int4", "int8"])
def test_matrices_are_those_of_the_bundle(name: str, zeros: bool, stored: Stored) -> None:
    from openvino import Core, Model
    from openvino import opset13 as ops

    values = np.random.default_rng(0).standard_normal((5, 96)).astype(np.float32)
    packed = format_named(name).pack(values, 32)
    if zeros:
        packed = with_zeros(packed)
    cut = PackedWeight(
        packed.format, (5, 90), packed.block, packed.codes, packed.scales, packed.zeros
    )
    for weight in (packed, cut):
        model = Model([ops.result(make_matrix(ops, weight, stored))], [])
        exact = {"INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": 1}
        matrix = Core().compile_model(model, "CPU", exact)({})[0]
        assert np.array_equal(matrix, dense(weight))
