"""Devices and weights for tests of what stands above the driver."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from edgerun.formats import format_named
from edgerun.formats.base import PackedWeight
from edgerun_hw.devices import registry
from edgerun_hw.overlay.driver import Tlmm
from edgerun_hw.overlay.geometry import PRESETS, Geometry
from edgerun_hw.overlay.port import Overlay
from edgerun_hw.simulate.fake import FakeDevice, Faults


def fake_overlay(geometry: Geometry | str = "tiny", faults: Faults | None = None) -> Tlmm:
    """A driver on the software device."""
    chosen = PRESETS[geometry] if isinstance(geometry, str) else geometry
    return Tlmm(FakeDevice(chosen, faults=faults, memory_bytes=64 << 20))


def random_weight(
    rng: np.random.Generator,
    name: str,
    shape: tuple[int, int],
    block: int,
    *,
    row_scales: bool = False,
) -> PackedWeight:
    """A weight of random codes over the format's whole range, and random scales of either sign."""
    n, k = shape
    form = format_named(name)
    low = {"ternary": -1, "int2": -2, "int4": -8, "int8": -128}[name]
    high = 1 if name == "ternary" else -low - 1
    integers = rng.integers(low, high + 1, (n, k)).astype(np.float32)
    scales = rng.uniform(0.01, 1, (n, k // block)).astype(np.float32)
    scales *= rng.choice(np.float32([-1, 1]), scales.shape)
    if row_scales:
        scales[:] = scales[:, :1]
    codes = form.encode(np.repeat(scales, block, axis=1) * integers, scales, block)
    return PackedWeight(name, shape, block, codes.codes, scales)


def normal(rng: np.random.Generator, rows: int, width: int) -> NDArray[np.float32]:
    return rng.standard_normal((rows, width)).astype(np.float32)


def replace_fake(monkeypatch: pytest.MonkeyPatch, make: Callable[[], Overlay]) -> None:
    """Lets ``--device fake`` open what ``make`` returns."""
    kind = replace(registry.DEVICES["fake"], open=lambda argument: make())
    monkeypatch.setattr(registry, "DEVICES", {**registry.DEVICES, "fake": kind})
