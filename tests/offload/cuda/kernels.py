"""Runs in a process of its own under Numba's CUDA simulator; prints a line of JSON.

NUMBA_ENABLE_CUDASIM=1 python -m tests.offload.cuda.kernels
"""

from __future__ import annotations

import json
import sys
import warnings
from collections.abc import Callable
from fractions import Fraction
from functools import partial
from typing import Any

import numpy as np
from numba import cuda

from edgerun.backends.base import Shape
from edgerun.offload.cuda import CudaBackend, forms, twins
from edgerun.offload.cuda import life as lives
from edgerun.offload.cuda import programs as programs_module
from edgerun.offload.cuda.life import Life
from edgerun.offload.cuda.programs import ExpertPrograms
from edgerun.offload.cuda.slots import matrices_of
from edgerun.offload.cuda.streams import Kernel, Mark, Stream
from edgerun.offload.sharing.device import ALL, DeviceSizes
from edgerun.offload.sharing.layer import Layer
from edgerun.state import SequenceStore
from tests.offload.cuda.simulator import hurry
from tests.support.experts import EXPERTS, STATES, Case, graph_of, layer_of, normal

CASES = [
    Case("int4", "int8_block", 64, 64, rows=3, groups=2),
    Case("int4", "int8_block", 44, 20, activation="clamped_swiglu", biased=True),
    Case("int4", "int8_row", 64, 32, rows=2),  # scales of blocks, rows rounded as a whole
    Case("int8", "int8_block", 48, 32, block=16, activation="relu2"),
    # More blocks than wait at a time, in tiles of one row and of more.
    Case("int2", "int8_block", 544, 16, block=32, groups=3),
    Case("int2", "int8_block", 544, 16, block=32, rows=3, groups=3),
    Case("ternary", "int8_row", 160, 48, groups=2),
    Case("ternary", "int8_row", 160, 48, rows=9, groups=2),  # more rows than a tile
    # Zero points in dwords of several blocks, beside scales of 32 and of 16 bits.
    Case("int4_asym", "int8_block", 320, 16, rows=2, weights_up="int4"),
    Case("int2_asym", "int8_block", 544, 16, groups=3, halves=True),
    Case("int8_asym", "int8_block", 160, 16),
    Case("int4", "int8_block", 96, 16, halves=True),
]
FEW = 16  # blocks that wait, of which tiles of one row have room for more


class Late(Stream):
    """Does nothing until it is told to, as a GPU may."""

    def __init__(self) -> None:
        self.queued: list[Callable[[], None]] = []

    def is_done(self) -> bool:
        return not self.queued

    def upload(self, target: Any, source: Any, first: int = 0) -> None:
        self.queued.append(partial(super().upload, target, source, first))

    def download(self, target: Any, source: Any) -> None:
        self.queued.append(partial(super().download, target, source))

    def launch(self, kernel: Kernel, grid: tuple[int, int], block: tuple[int, int]) -> None:
        self.queued.append(partial(super().launch, kernel, grid, block))

    def catch_up(self) -> None:
        """Does what is queued."""
        while self.queued:
            self.queued.pop(0)()


def finish(stream: Stream) -> None:
    """Waits for what is queued."""
    mark = Mark()
    mark.record(stream)
    mark.wait()


def programs_of(case: Case, layer: Layer) -> ExpertPrograms:
    """The kernels for a layer, whose experts are in their slots."""
    sizes = DeviceSizes(layer.layout.nbytes, EXPERTS, case.rows, case.hidden, case.width)
    matrices = matrices_of(layer.layout, case.activations)
    programs = ExpertPrograms(sizes, matrices, case.activation, case.groups)
    for number, slot in enumerate(layer.slots):
        start = number * sizes.slot_bytes
        programs.memory[start : start + sizes.slot_bytes].copy_to_device(slot)
    return programs


def differing_bits(case: Case) -> int:
    """Results of the GPU's kernels that are not those of the processor, to the bit."""
    layer, cpu = layer_of(case)
    x = 3 * normal((case.rows, case.hidden), 5)
    x[0, : case.block] = 0  # a block without a scale
    x[0, -1] = 20  # the last element is the largest
    x[1:2, 3] = np.nan  # makes a row, and nothing else, no number
    experts = np.sort(np.arange(case.rows) % EXPERTS)
    expected = layer.multiply(x, experts, SequenceStore(STATES, 1)).copy()
    programs, out = programs_of(case, layer), np.zeros_like(x)
    stream = Stream()
    programs.run(x, experts.tolist(), out, stream)
    finish(stream)
    layer.close()
    cpu.close()
    assert np.abs(out[0]).max() > 0
    assert np.isnan(out[1:2]).all()
    differing = out.view(np.int32) != expected.view(np.int32)
    return int(np.count_nonzero(differing & ~(np.isnan(out) & np.isnan(expected))))


def recorded() -> list[int]:
    """Products that are queued again and again in the same memory, of other rows and experts.

    Returns:
        results of each time that are not the processor's; and how many kinds there are, and
        recordings, before and after others have come.
    """
    case = Case("int4", "int8_block", 320, 64, rows=2)
    layer, cpu = layer_of(case)
    programs, stream, cache = programs_of(case, layer), Stream(), SequenceStore(STATES, 1)
    x, out = (cuda.pinned_array((case.rows, case.hidden), np.float32) for _ in range(2))
    wrong = []
    for seed, experts in enumerate([[0, 1], [1, 0], [0, 1], [0, 0], [1, 0]]):
        x[:], out[:] = normal(x.shape, seed), np.nan
        programs.run(x, experts, out, stream)
        finish(stream)
        expected = layer.multiply(x, np.array(experts), cache)
        wrong.append(int(np.count_nonzero(out.view(np.int32) != expected.view(np.int32))))
    kinds, counts = programs._recordings, []
    for others in (0, programs_module.MOST_RECORDINGS):
        for number in range(others):
            programs._recording((number,), stream, lambda: None)
        counts += [len(kinds), sum(each is not None for each in kinds.values())]
    layer.close()
    cpu.close()
    return [*wrong, *counts]


def queued() -> list[object]:
    """Commands that are under way together; and a life is only over when its streams are.

    Returns:
        numbers of the answers, results that are not the processor's, and whether it was over:
        with something in each of its streams, and with nothing.
    """
    case = Case("int4", "int8_block", 64, 64, rows=4)
    layer, cpu = layer_of(case)
    x, experts = normal((case.rows, case.hidden), 5), np.array([0, 1, 0, 0])
    expected = layer.multiply(x, experts, SequenceStore(STATES, 1)).copy()
    life = Life(cuda.gpus[0], programs_of(case, layer))
    life._computing = late = Late()
    life.x[:] = x
    for number, (first, end) in enumerate([(0, 2), (2, 4)]):
        life.send(number, first, experts[first:end].tolist(), ALL)
    late.catch_up()
    numbers = [life.answer(1.0).number for _ in range(2)]
    life.send(2, 0, [1], ALL)
    life._sent.clear()  # as if Ctrl-C had come before it was noted
    closed = [life.close()]
    late.catch_up()
    life._copying = Late()
    life._copying.upload(life._programs.memory, layer.slots[0])
    closed += [life.close()]
    life._copying.catch_up()
    layer.close()
    cpu.close()
    wrong = int(np.count_nonzero(life.out[2:] != expected[2:]))
    return [numbers, wrong, [*closed, life.close()]]


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
        result = twins.fma(a, b, c)
        error = abs(Fraction(float(result)) - exact)
        for way in (-np.inf, np.inf):
            near = Fraction(float(np.nextafter(result, np.float32(way))))
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
    forms.STAGE[1] = FEW
    lives.CLOSING_S = 0.01
    told = {
        "simulator": "simulator" in cuda.jit.__module__,
        "differing": [differing_bits(case) for case in CASES],
        "recorded": recorded(),
        "queued": queued(),
        "refused": refused(),
        "advice": advice(),
        "fma": fma_errors(),
        "dot": dot_errors(),
    }
    sys.stdout.write(json.dumps(told) + "\n")


if __name__ == "__main__":
    main()
