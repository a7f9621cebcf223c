"""The process that stands in for a GPU: it multiplies what lies in its slots, on one core.

It reads lines of JSON: the first says what its memory is like, each that follows is a ``Command``.
It answers each with an ``Answer``. What it cannot do is an answer, too, and then it goes on.
"""

from __future__ import annotations

import pickle
import sys
import time
from collections.abc import Mapping
from typing import Any

import msgspec
import numpy as np

from edgerun.backends.base import CompileOptions, Executable, Shape
from edgerun.backends.cpu import CpuBackend
from edgerun.backends.cpu.experts.weights import ExpertStore, ExpertWeights
from edgerun.graph.ir import Graph, Node, ValueShape
from edgerun.kernels.isa import selected_isa
from edgerun.offload.places import one_hot
from edgerun.offload.sharing.device import Answer, DeviceSizes
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
    """

    number: int
    first: int
    slots: tuple[int, ...]


class SlotExperts(ExpertStore):
    """Hands out what lies in slots, as if each were an expert."""

    def __init__(self, slots: ExpertWeights) -> None:
        """Takes the slots."""
        super().__init__(selected_isa())
        self._slots = slots

    def prepare(self, graph: Graph, node: Node) -> ExpertWeights:
        return self._slots


class Multiplier:
    """The programs of the process."""

    def __init__(self, setup: Setup, descriptor: int) -> None:
        """Compiles a program for few rows and one for many."""
        sizes = setup.sizes
        self._memory = map_memory(descriptor, sizes.nbytes)
        self._x, self._out = transfers_of(sizes, self._memory)
        self._slots = sizes.slots
        slots = [slot_of(sizes, self._memory, slot) for slot in range(sizes.slots)]
        backend = CpuBackend()
        backend.configure({"threads": 1})
        backend.use_experts(SlotExperts(ExpertWeights.of(pickle.loads(setup.layout), slots)))
        graph = _graph(setup.attributes, sizes)
        options = CompileOptions(NO_STATE)
        heights = sorted({min(FEW_PLACES, sizes.rows), sizes.rows})
        self._programs: list[tuple[int, Executable]] = [
            (rows, backend.compile(graph, Shape.of(rows), options)) for rows in heights
        ]
        self._cache = SequenceStore(NO_STATE, 1)

    def run(self, command: Command) -> None:
        """Multiplies rows and writes what comes out."""
        count = len(command.slots)
        there = slice(command.first, command.first + count)
        program = next(program for rows, program in self._programs if count <= rows)
        routes = one_hot(np.array(command.slots, np.int64), self._slots)
        batch = Batch.of([0] * count, 0, 0, logits="none")
        outputs = program(batch, self._cache, {"x": self._x[there], "routes": routes})
        self._out[there] = outputs["out"]


def _graph(attributes: Mapping[str, Any], sizes: DeviceSizes) -> Graph:
    node = Node("experts", "slots", ("x", "routes", *STACKS), ("out",), {**attributes, "top_k": 1})
    shapes = {"x": ValueShape(sizes.width), "routes": ValueShape(sizes.slots)}
    return Graph([node], ["x", "routes"], ["out"], {}, shapes=shapes)


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
        command = msgspec.json.decode(line, type=Command)
        try:
            multiplier.run(command)
            answer = Answer(command.number, time.monotonic())
        except Exception as error:
            answer = Answer(command.number, fault=f"{type(error).__name__}: {error}")
        _say(answer)


def _say(answer: Answer) -> None:
    sys.stdout.buffer.write(msgspec.json.encode(answer) + b"\n")
    sys.stdout.buffer.flush()
