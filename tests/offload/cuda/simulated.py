"""Runs in a process of its own under Numba's CUDA simulator; prints a line of JSON.

NUMBA_ENABLE_CUDASIM=1 python -m tests.offload.cuda.simulated
"""

from __future__ import annotations

import json
import sys

import numpy as np
from numba import cuda

from edgerun.errors import UnsupportedError
from edgerun.formats import format_named
from edgerun.offload.cuda.dots import portable
from edgerun.offload.cuda.kernels import Kernels, make_kernels
from edgerun.offload.cuda.network import DeviceWeight, Multiplier
from edgerun.ops import gate as gates
from edgerun.ops import linear as products

# Weight format, rounding of activations, N, K, block, rows.
CASES = [
    ("int4", "int8_block", 64, 64, 32, 1),
    ("int4", "int8_row", 5, 64, 64, 9),
    ("int2", "int8_block", 6, 64, 32, 2),
    ("ternary", "int8_row", 64, 64, 32, 1),
    ("ternary", "int8_row", 3, 64, 64, 2),
]


def error_of(found: np.ndarray, expected: np.ndarray) -> float:  # type: ignore[type-arg]
    return float(np.abs(found - expected).max() / np.abs(expected).max())


def normal(shape: tuple[int, ...], seed: int) -> np.ndarray:  # type: ignore[type-arg]
    return np.random.default_rng([seed, *shape]).standard_normal(shape).astype(np.float32)


def kernels_of(name: str) -> Kernels:
    return make_kernels(format_named(name).bits, portable())


def main() -> None:
    told: dict[str, object] = {"simulator": "simulator" in cuda.jit.__module__}
    errors = []
    for name, activations, n, k, block, rows in CASES:
        weight = format_named(name).pack(normal((n, k), 1), block)
        x = normal((rows, k), 2)
        if block < k:
            x[0, :block] = 0  # a block without a scale
        multiplier = Multiplier(kernels_of(name))
        out = multiplier.linear(cuda.to_device(x), DeviceWeight.of(weight), activations)
        expected = products.linear(x, weight, activations=activations)
        errors.append(error_of(out.copy_to_host(), expected))
        if rows > 1:  # bits do not depend on other rows
            alone = multiplier.linear(cuda.to_device(x[-1:]), DeviceWeight.of(weight), activations)
            assert np.array_equal(alone.copy_to_host()[0], out.copy_to_host()[-1])
    told["products"] = errors
    told["experts"] = [expert("int4", "int8_block"), expert("ternary", "int8_row")]
    told["dot"] = dot_errors()
    refusals = 0
    for wrong in (("int8", 64, 32), ("int4", 64, 16)):
        try:
            DeviceWeight.of(format_named(wrong[0]).pack(normal((4, wrong[1]), 1), wrong[2]))
        except UnsupportedError as error:
            refusals += "expected 2 or 4 bits" in str(error)
    told["refusals"] = refusals
    sys.stdout.write(json.dumps(told) + "\n")


def expert(name: str, activations: str) -> float:
    """Error of a whole network, 2 rows of 32 through 64."""
    shapes = [(64, 32), (64, 32), (32, 64)]
    matrices = [
        format_named(name).pack(normal(shape, seed) / 8, 32) for seed, shape in enumerate(shapes)
    ]
    x = normal((2, 32), 9)
    found = Multiplier(kernels_of(name)).expert(x, *map(DeviceWeight.of, matrices), activations)
    inner = gates.gate(
        *(products.linear(x, each, activations=activations) for each in matrices[:2]),
        activation="silu",
    )
    expected = products.linear(inner, matrices[2], activations=activations)
    return error_of(found, expected)


def dot_errors() -> int:
    """How often the portable dot product is wrong; bytes of all signs."""
    dot4 = portable()

    @cuda.jit
    def each(a, b, out):  # type: ignore[no-untyped-def]
        place = cuda.grid(1)
        out[place] = dot4(a[place], b[place], 7)

    bytes_ = np.random.default_rng(3).integers(-128, 128, (2, 64, 4)).astype(np.int8)
    bytes_[:, 0], bytes_[:, 1] = -128, 127
    a, b = (np.ascontiguousarray(side).view(np.int32)[:, 0] for side in bytes_)
    out = np.zeros(64, np.int64)
    each[2, 32](a.astype(np.int64), b.astype(np.int64), out)
    expected = 7 + (bytes_[0].astype(np.int64) * bytes_[1]).sum(axis=1)
    return int(np.count_nonzero(out != expected))


if __name__ == "__main__":
    main()
