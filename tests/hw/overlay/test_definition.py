"""The definition of a command against plain matrix products, and the geometry beside it."""

from __future__ import annotations

import numpy as np
import pytest

from edgerun_hw.overlay import packing as lookup
from edgerun_hw.overlay import register_map
from edgerun_hw.overlay.definition import run_command, scale_sums
from edgerun_hw.overlay.geometry import PRESETS, Geometry
from edgerun_hw.overlay.packing import (
    LookupMode,
    pack_activations,
    pack_multiples,
    pack_scales,
    pack_ternary,
    unpack_results,
)


@pytest.mark.parametrize("ports", [1, 3, 4])
@pytest.mark.parametrize("columns", [1, 3])
@pytest.mark.parametrize("mode", LookupMode)
def test_command_is_a_matrix_product(mode: LookupMode, columns: int, ports: int) -> None:
    random = np.random.default_rng(ports)
    limit, pack = {
        LookupMode.TERNARY: (1, pack_ternary),
        LookupMode.MULTIPLES: (13, pack_multiples),
    }[mode]
    weights = random.integers(-limit, limit + 1, (37, 52), np.int8)
    activations = random.integers(-128, 128, (columns, 52)).astype(np.int8)
    words = run_command(mode, pack(weights, ports), pack_activations(activations, mode))
    assert words.size % 4 == 0
    results = unpack_results(words.view(np.int32), 37, columns, ports)
    assert (results == activations.astype(np.int32) @ weights.T.astype(np.int32)).all()


def test_scaled_command_is_the_rounded_product() -> None:
    random = np.random.default_rng(0)
    weights = random.integers(-1, 2, (12, 40), np.int8)
    activations = random.integers(-128, 128, (2, 40)).astype(np.int8)
    scales = random.normal(size=12).astype(np.float32)
    mode = LookupMode.TERNARY
    words = run_command(
        mode, pack_ternary(weights, 2), pack_activations(activations, mode), pack_scales(scales, 2)
    )
    results = unpack_results(words.view(np.float32), 12, 2, 2)
    sums = activations.astype(np.float32) @ weights.T.astype(np.float32)
    assert (results == sums * scales).all()


@pytest.mark.parametrize(
    ("total", "scale", "expected"),
    [
        (0, -1.5, -0.0),
        (-1, 1e-39, -0.0),  # a subnormal scale is zero
        (1 << 23, 1e-39, 0.0),  # even where the product would be normal
        (3, 2.0**-126, 3 * 2.0**-126),
        (1 << 20, 3e38, np.inf),
        (-(1 << 20), 3e38, -np.inf),
        (16777215, 1.0, 16777215.0),
        (3, 1.0 + 2.0**-23, 3.0 + 2.0**-21),  # 3 + 1.5 * 2**-22: a tie, to even
        (5, 1.0 + 2.0**-23, 5.0 + 2.0**-21),  # 5 + 1.25 * 2**-21: down
    ],
)
def test_rounding_and_range(total: int, scale: float, expected: float) -> None:
    scaled = scale_sums(np.array([total]), np.array([scale], np.float32))[0]
    assert scaled == np.float32(expected)
    assert np.signbit(scaled) == np.signbit(expected)


@pytest.mark.parametrize(("total", "scale"), [(1 << 24, 1.0), (1, np.inf), (1, np.nan)])
def test_what_cannot_be_scaled_is_refused(total: int, scale: float) -> None:
    with pytest.raises(ValueError, match="must be"):
        scale_sums(np.array([total]), np.array([scale], np.float32))


@pytest.mark.parametrize(
    "name",
    [
        "CODE_BITS",
        "MAX_MAGNITUDE",
        "TABLES",
        "PORT_ROWS",
        "GROUP",
        "BEAT_BYTES",
        "SPLIT_RADIX",
    ],
)
def test_layout_and_registers_have_the_same_constants(name: str) -> None:
    assert getattr(lookup, name) == getattr(register_map, name)


def test_geometry_counts() -> None:
    decode, prefill = PRESETS["decode-300"], PRESETS["prefill-1500"]
    assert decode.macs_per_cycle == 300
    assert prefill.macs_per_cycle == 1500
    assert decode.weight_bytes_per_cycle == prefill.weight_bytes_per_cycle == 64
    assert decode.row_beats(6912) == lookup.row_beats(6912, decode.ports) == 346
    assert decode.max_rows == 10240


@pytest.mark.parametrize(
    ("name", "value"), [("ports", 0), ("ports", 5), ("columns", 0), ("nb_max", 500)]
)
def test_impossible_geometry_is_refused(name: str, value: int) -> None:
    with pytest.raises(ValueError, match=f"{name} must be .* not {value}"):
        Geometry(**{name: value})
