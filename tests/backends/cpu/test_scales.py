"""Scales that take a single vector of a panel, which does not make them one of the whole row."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from edgerun.backends import CompileOptions, Shape
from edgerun.backends.cpu import CpuBackend
from edgerun.formats import format_named
from edgerun.formats.base import PackedWeight
from edgerun.formats.stack import ExpertStack
from edgerun.ops.base import Example, normal
from edgerun.ops.registry import OPS
from tests.conformance.examples import Case

# Formats and widths: scales of one block with its offsets, and halves of two blocks.
FORMS = [("int4_offset", 32), ("int8_offset", 32), ("int4", 64), ("int8", 64)]


def weight(form: str, height: int, k: int, seed: int = 0) -> PackedWeight:
    values = normal((height, k), seed) / np.float32(k**0.5) + np.float32(0.1)
    packed = format_named(form).pack(values, 32)
    return replace(packed, scales=packed.scales.astype(np.float16).astype(np.float32))


def check(op: str, inputs: dict[str, Any], attributes: dict[str, Any]) -> None:
    case = Case(op, 0, Example(inputs, {"activations": "int8_row", **attributes}))
    (expected,), cache = case.expected().values(), case.cache(case.spec())
    backend = CpuBackend()
    backend.configure({"threads": 1})
    program = backend.compile(case.graph(), Shape.of(case.rows), CompileOptions(case.spec()))
    (computed,) = program(case.batch(cache), cache, case.values()).values()
    backend.close()
    assert np.abs(computed - expected).max() <= OPS[op].tolerance * np.abs(expected).max()


@pytest.mark.parametrize(("form", "k"), FORMS)
@pytest.mark.parametrize("rows", [1, 20])
def test_a_layer_whose_inputs_are_rounded_by_row(form: str, k: int, rows: int) -> None:
    check("linear", {"x": normal((rows, k), 1), "weight": weight(form, 40, k)}, {})


def test_experts_whose_inputs_are_rounded_by_row() -> None:
    stacks = {
        name: ExpertStack(tuple(weight("int4", 64, 64, seed + 3 * each) for each in range(3)))
        for seed, name in enumerate(("gate", "up", "down"))
    }
    routes = np.array([[0, 1, 0.5], [1, 0, 0], [0.2, 0, 1]], np.float32)
    attributes = {"top_k": 2, "activation": "silu"}
    check("experts", {"x": normal((3, 64), 9), "routes": routes, **stacks}, attributes)
