"""Matrices of float32 whose rows are short: in memory they are many times as long."""

from __future__ import annotations

import numpy as np
import pytest

from edgerun.backends.cpu.families import weight_bytes
from edgerun.backends.cpu.weights import WeightStore
from edgerun.kernels.isa import selected_isa


@pytest.mark.parametrize("shape", [(64, 1), (64, 40), (64, 256), (3, 300)])
def test_bytes_of_float_weights_are_those_in_memory(shape: tuple[int, int]) -> None:
    weight = np.ones(shape, np.float32)
    prepared = WeightStore(selected_isa()).prepare(weight, "float")
    assert weight_bytes(weight, "float", trits=False) == prepared.nbytes


def test_tables_and_vectors_lie_there_as_they_are() -> None:
    for array, activations in (
        (np.ones((64, 1), np.float32), ""),
        (np.ones(64, np.float32), "float"),
    ):
        assert weight_bytes(array, activations, trits=False) == array.nbytes
