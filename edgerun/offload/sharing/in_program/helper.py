"""Instructions of a program that give a device some experts of a layer, and take their results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from edgerun.backends.cpu.binder import ONE, Binder
from edgerun.backends.cpu.buffers import Buffer
from edgerun.backends.cpu.emit.experts import emit_experts
from edgerun.backends.cpu.experts.program.places import Places
from edgerun.graph.ir import Node
from edgerun.kernels.jit.service import compiled
from edgerun.kernels.run import commands as words
from edgerun.kernels.run.instructions import Instruction
from edgerun.kernels.run.program import FRAME_WORDS
from edgerun.offload.divider import Divider, Prices
from edgerun.offload.sharing.in_program.control import Control

DEVICE = "device"  # stands for what both kernels and the device have in common


@dataclass(frozen=True, slots=True)
class LayerWords:
    """What a layer tells of its last run.

    Attributes:
        number: of the layer.
        words: int64, see ``kernels/run/commands.py``.
        scores: of the experts that are in there, float32 ``[experts]``.
    """

    number: int
    words: NDArray[np.int64]
    scores: NDArray[np.float32]


@dataclass(slots=True)
class DeviceHelper:
    """Emits those instructions; see ``emit/experts.py``.

    Attributes:
        control: see ``Control``.
        numbers: of the layers that are shared, by the names of their nodes.
        prices: that layers are divided by.
        most_experts: of a layer.
        layers: those that were emitted.
        totals: int64, sums over all of them.
    """

    control: Control
    numbers: Mapping[str, int]
    prices: Prices
    most_experts: int
    layers: list[LayerWords] = field(default_factory=list)
    totals: NDArray[np.int64] = field(default_factory=lambda: np.zeros(words.TOTAL_WORDS, np.int64))
    _divider: Divider | None = None

    def emit(self, binder: Binder, node: Node, index: int) -> None:
        """Emits a layer of experts, shared or not."""
        emit_experts(binder, node, index, self if node.name in self.numbers else None)

    def begin(self, binder: Binder, node: Node, places: Places, x: Buffer) -> None:
        most, number = min(places.experts, places.count), self.numbers[node.name]
        told = np.zeros(words.LAYER_WORDS + 2 * most, np.int64)
        layer = LayerWords(number, told, np.zeros(most, np.float32))
        self.layers.append(layer)
        if self._divider is None:
            self._divider = Divider(self.most_experts, self.prices)
        memory, divide = self._divider.memory, np.zeros(1, np.int64)
        binder.calls.append((divide, compiled("expert_division", binder.options.progress)))
        binder.emit(
            "expert_command",
            {},
            {
                "rows": binder.count(places.counted_by),
                "parts": places.parts,
                "experts": places.experts,
                "most": most,
                "top_k": places.top_k,
                "places": places.places,
                "weights": places.weights,
                "row_of": np.zeros(places.count, np.int64),
                "table": self.control.table(number, places.experts),
                "control": self.control.words,
                "layer": layer.words,
                "scores": layer.scores,
                "divide": divide,
                "division": self._divider.arguments,
                "counts": memory["rows"],
                "cached": memory["cached"],
                "shares": memory["shares"],
                "costs": memory["costs"],
                "prices": memory["prices"],
                "result": memory["result"],
                "x": x,
                "x_stride": x.stride,
                "width": x.width,
            },
            chunks=(ONE, 1, 1),
            reads={places.key, x.key},
            writes={places.key, DEVICE},
            label=f"{node.name}/command",
        )

    def end(
        self,
        binder: Binder,
        node: Node,
        places: Places,
        results: Buffer,
        steps: Sequence[Instruction],
    ) -> None:
        layer = self.layers[-1]
        table = np.zeros((len(steps), words.STEP_WORDS), np.int64)
        for row, step in zip(table, steps, strict=True):
            row[words.ARGUMENTS] = step.arguments.ctypes.data
            row[words.SIZE], row[words.TIMES], row[words.DIVIDE] = (
                step.size,
                step.times,
                step.divide,
            )
            binder.calls.append((row, step.code))
        binder.emit(
            "expert_results",
            {},
            {
                "rows": binder.count(places.counted_by),
                "parts": places.parts,
                "experts": places.experts,
                "most": len(layer.scores),
                "top_k": places.top_k,
                "control": self.control.words,
                "layer": layer.words,
                "totals": self.totals,
                "steps": table,
                "count": len(table),
                "frame": binder.frame,
                "frame_words": FRAME_WORDS,
                "results": results,
                "stride": results.stride,
                "width": results.width,
            },
            chunks=(ONE, 1, 1),
            reads={results.key, places.key, DEVICE},
            writes={results.key, places.key, DEVICE},
            label=f"{node.name}/results",
        )
