"""Runs in a process of its own under Numba's CUDA simulator; prints a line of JSON.

NUMBA_ENABLE_CUDASIM=1 python -m tests.offload.cuda.kernels
"""

from __future__ import annotations

import json
import sys
import warnings
from fractions import Fraction

import numpy as np
from numba import cuda

from edgerun.backends.base import Shape
from edgerun.offload.cuda import CudaBackend, twins
from edgerun.offload.cuda.programs import ExpertPrograms
from edgerun.offload.cuda.slots import matrices_of
from edgerun.offload.cuda.streams import Mark, Stream
from edgerun.offload.sharing.device import DeviceSizes
from edgerun.state import SequenceStore
from tests.offload.cuda.simulator import hurry
from tests.support.experts import EXPERTS, STATES, Case, graph_of, layer_of, normal

CASES = [
    Case("int4", "int8_block", 64, 64, rows=3, groups=2),
    Case("int4", "int8_block", 40, 24, activation="clamped_swiglu", biased=True),
    Case("int4", "int8_row", 64, 32, rows=2),  # scales of blocks, rows rounded as a whole
    Case("int8", "int8_block", 48, 32, block=16, activation="relu2"),
    Case("int2", "int8_block", 544, 16, block=32, groups=3),  # more blocks than wait at a time
    Case("ternary", "int8_row", 160, 48, rows=9, groups=2),  # more rows than a tile
]


def finish(stream: Stream) -> None:
    """Waits for what is queued."""
    mark = Mark()
    mark.record(stream)
    mark.wait()


def differing_bits(case: Case) -> int:
    """Results of the GPU's kernels that are not those of the processor, to the bit."""
    layer, cpu = layer_of(case)
    x = 3 * normal((case.rows, case.hidden), 5)
    x[0, : case.block] = 0  # a block without a scale
    x[1:2, 3] = np.nan  # makes a row, and nothing else, no number
    experts = np.sort(np.arange(case.rows) % EXPERTS)
    expected = layer.multiply(x, experts, SequenceStore(STATES, 1)).copy()
    sizes = DeviceSizes(layer.layout.nbytes, EXPERTS, case.rows, case.hidden, case.width)
    programs = ExpertPrograms(
        sizes, matrices_of(layer.layout, case.activations), case.activation, case.groups
    )
    for number, slot in enumerate(layer.slots):
        start = number * sizes.slot_bytes
        programs.memory[start : start + sizes.slot_bytes].copy_to_device(slot)
    out = np.zeros_like(x)
    stream = Stream()
    programs.run(x, experts.tolist(), out, stream)
    finish(stream)
    layer.close()
    cpu.close()
    assert np.abs(out[0]).max() > 0
    assert np.isnan(out[1:2]).all()
    differing = out.view(np.int32) != expected.view(np.int32)
    return int(np.count_nonzero(differing & ~(np.isnan(out) & np.isnan(expected))))


def refused() -> int:
    """How many of two kinds of experts the back-end leaves to the processor."""
    count = 0
    for case, reason in (
        (Case("int4", "float", 64, 32), "in float32"),
        (Case("int4", "int8_block", 64, 32, weights_up="int8"), "their formats differ"),
    ):
        graph = graph_of(case)
        support = CudaBackend().supports(graph, graph.nodes[0], Shape.of(1))
        count += not support and reason in support.reason
    return count


def fma_errors() -> int:
    """How often the twin of ``fma`` is not what rounding the exact value once gives."""
    rng = np.random.default_rng(4)
    numbers = rng.standard_normal((3, 3000)).astype(np.float32)
    numbers[2] *= np.float32(2.0) ** rng.integers(-60, 8, 3000).astype(np.float32)
    # Halfway between two float32, but for a little.
    numbers[:, 0] = 1 + 2.0**-12, 1 + 2.0**-12, 2.0**-80
    numbers[:, 1] = 1 + 2.0**-12, 1 + 2.0**-12, -(2.0**-80)
    wrong = 0
    for a, b, c in numbers.T:
        exact = Fraction(float(a)) * Fraction(float(b)) + Fraction(float(c))
        found = twins.fma(a, b, c)
        error = abs(Fraction(float(found)) - exact)
        for way in (-np.inf, np.inf):
            near = Fraction(float(np.nextafter(found, np.float32(way))))
            wrong += int(abs(near - exact) < error)
    return int(wrong)


def dot_errors() -> int:
    """How often the twin of the dot product is wrong; bytes of all signs."""
    values = np.random.default_rng(3).integers(-128, 128, (2, 64, 4)).astype(np.int8)
    values[:, 0], values[:, 1] = -128, 127
    a, b = (np.ascontiguousarray(side).view(np.int32)[:, 0] for side in values)
    expected = 7 + (values[0].astype(np.int64) * values[1]).sum(axis=1)
    return sum(int(int(twins.dot4(x, y, 7)) != z) for x, y, z in zip(a, b, expected, strict=True))


def advice() -> int:
    """Warnings that are shown of those that Numba gives when a kernel has few rows."""
    with warnings.catch_warnings(record=True) as shown:
        text = "\x1b[1mGrid size 8 will likely result in GPU under-utilization."
        warnings.warn(text, stacklevel=1)
    return len(shown)


def main() -> None:
    hurry()
    told = {
        "simulator": "simulator" in cuda.jit.__module__,
        "differing": [differing_bits(case) for case in CASES],
        "refused": refused(),
        "advice": advice(),
        "fma": fma_errors(),
        "dot": dot_errors(),
    }
    sys.stdout.write(json.dumps(told) + "\n")


if __name__ == "__main__":
    main()
