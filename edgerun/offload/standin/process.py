"""The process that stands in for a GPU: it multiplies what lies in its slots, on one core.

It reads lines of JSON: the first says what its memory is like, each that follows is a ``Command``.
It answers each with an ``Answer``. What it cannot do is an answer, too, and then it goes on.
"""

from __future__ import annotations

import pickle
import sys
import time
from collections.abc import Collection, Mapping
from typing import Any

import msgspec
import numpy as np

from edgerun.backends.base import CompileOptions, Executable, Shape
from edgerun.backends.cpu import CpuBackend
from edgerun.backends.cpu.experts.weights import ExpertStore, ExpertWeights
from edgerun.graph.ir import Graph, Node, ValueShape
from edgerun.kernels.isa import selected_isa
from edgerun.kernels.layouts.stream import StreamWeight
from edgerun.offload.places import one_hot
from edgerun.offload.sharing.cuts import cut_program
from edgerun.offload.sharing.device import ALL, FIRST, SECOND, WHOLE, Answer, DeviceSizes, Product
from edgerun.offload.standin.memory import map_memory, slot_of, transfers_of
from edgerun.state import Batch, SequenceStore, same_attention

STACKS = ("gate", "up", "down")
NO_STATE = same_attention(1, 1, 16, "fp32")
FEW_PLACES = 16
CHILD = (
    "import sys; sys.path[:] = sys.argv[2:]; "
    "from edgerun.offload.standin.process import main; main(int(sys.argv[1]))"
)


class Setup(msgspec.Struct, frozen=True):
    """What the process is told first.

    Attributes:
        sizes: of its memory.
        layout: of a slot, pickled.
        attributes: of the layers, see ``ops/experts.py``.
    """

    sizes: DeviceSizes
    layout: bytes
    attributes: Mapping[str, Any]


class Command(msgspec.Struct, frozen=True):
    """Rows to be multiplied.

    Attributes:
        number: comes back with the answer.
        first: of the rows that came in, the first.
        slots: of each of the rows from there on, where its expert lies.
        product: what of the expert.
    """

    number: int
    first: int
    slots: tuple[int, ...]
    product: Product = ALL


class SlotExperts(ExpertStore):
    """Hands out what lies in slots, as if each were an expert."""

    def __init__(self, slots: ExpertWeights) -> None:
        """Takes the slots."""
        super().__init__(selected_isa())
        self._slots = slots

    def admit(self, graph: Graph) -> None:
        """They have their memory."""

    def lengths(self) -> Collection[int]:
        """Of all: graphs of slots have no constants."""
        weights = (matrix.weight for matrix in self._slots.matrices)
        return {each.padded_k for each in weights if isinstance(each, StreamWeight)}

    def prepare(self, graph: Graph, node: Node) -> ExpertWeights:
        return self._slots


class Multiplier:
    """The programs of the process."""

    def __init__(self, setup: Setup, descriptor: int) -> None:
        """Compiles a program for few rows and one for many; others are as they are needed."""
        self._sizes = sizes = setup.sizes
        self._memory = map_memory(descriptor, sizes.nbytes)
        self._x, self._inner, self._out = transfers_of(sizes, self._memory)
        slots = [slot_of(sizes, self._memory, slot) for slot in range(sizes.slots)]
        self._cpu = CpuBackend()
        self._cpu.configure({"threads": 1})
        self._cpu.use_experts(SlotExperts(ExpertWeights.of(pickle.loads(setup.layout), slots)))
        attributes = {**setup.attributes, "top_k": 1}
        self._node = Node("experts", "slots", ("x", "routes", *STACKS), ("out",), attributes)
        self._heights = sorted({min(FEW_PLACES, sizes.rows), sizes.rows})
        self._programs: dict[tuple[Product, int], Executable] = {}
        self._cache = SequenceStore(NO_STATE, 1)
        for rows in self._heights:
            self._program(ALL, rows)

    def run(self, command: Command) -> None:
        """Multiplies rows and writes what comes out."""
        count, product = len(command.slots), command.product
        there = slice(command.first, command.first + count)
        rows = next(rows for rows in self._heights if count <= rows)
        source = self._inner if product.op == SECOND else self._x
        target = self._inner if product.op == FIRST else self._out
        routes = one_hot(np.array(command.slots, np.int64), self._sizes.slots)
        batch = Batch.of([0] * count, 0, 0, logits="none")
        program = self._program(product, rows)
        out = program(batch, self._cache, {"x": source[there], "routes": routes})["out"]
        target[there, : out.shape[1]] = out

    def _program(self, product: Product, rows: int) -> Executable:
        key = product, rows
        if key not in self._programs:
            self._programs[key] = self._compile(product, rows)
        return self._programs[key]

    def _compile(self, product: Product, rows: int) -> Executable:
        sizes, options = self._sizes, CompileOptions(NO_STATE)
        widths = sizes.inner if product.op == SECOND else sizes.width, sizes.slots
        if product.op == WHOLE:
            shapes = dict(zip(("x", "routes"), map(ValueShape, widths), strict=True))
            graph = Graph([self._node], list(shapes), ["out"], {}, shapes=shapes)
            return self._cpu.compile(graph, Shape.of(rows), options)
        panels = 0, product.panels
        return cut_program(self._cpu, self._node, {}, rows, options, product.op, panels, widths)


def main(descriptor: int) -> None:
    """Answers until there is no more input."""
    lines = sys.stdin.buffer
    multiplier = None
    try:
        setup = msgspec.json.decode(lines.readline(), type=Setup)
        multiplier = Multiplier(setup, descriptor)
        _say(Answer(0))
    except Exception as error:
        _say(Answer(0, fault=f"{type(error).__name__}: {error}"))
        return
    for line in lines:
        begin = time.monotonic()
        command = msgspec.json.decode(line, type=Command)
        try:
            multiplier.run(command)
            answer = Answer(command.number, time.monotonic(), begin)
        except Exception as error:
            answer = Answer(command.number, fault=f"{type(error).__name__}: {error}")
        _say(answer)


def _say(answer: Answer) -> None:
    sys.stdout.buffer.write(msgspec.json.encode(answer) + b"\n")
    sys.stdout.buffer.flush()
