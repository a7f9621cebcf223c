"""Layers whose experts are read while they run: they ask for them, a wave after the other.

A batch may need more experts of a layer than there are slots. Then the layer is computed in waves
of as many as half of the slots take, so that those of the next wave are read meanwhile. What is
done row by row between the products is done for all rows in every wave: those of other waves hold
anything then, which nobody reads.
"""

from __future__ import annotations

from dataclasses import dataclass

from edgerun.backends.cpu.binder import ONE, Binder
from edgerun.backends.cpu.buffers import Buffer
from edgerun.backends.cpu.experts.gate import gate_of
from edgerun.backends.cpu.experts.program.places import Places
from edgerun.backends.cpu.experts.weights import ExpertWeights
from edgerun.graph.ir import Node


@dataclass(frozen=True, slots=True)
class Wave:
    """Some of the experts that a layer needs.

    Attributes:
        first: part that it begins with.
        parts: most that it has.
    """

    first: int
    parts: int


def waves_of(weights: ExpertWeights, places: Places) -> list[Wave]:
    """The waves of a layer, as many as its batches may take."""
    most = min(places.experts, places.count)
    size = most
    if weights.words is not None and weights.slots < most:
        size = weights.wave
    return [Wave(first, size) for first in range(0, most, size)]


def emit_fetch(
    binder: Binder, node: Node, weights: ExpertWeights, places: Places, wave: Wave, x: Buffer
) -> None:
    """Emits what asks for the experts of a wave; nothing where all are in memory.

    ``x`` are the layer's rows, from which those who read may foresee what later layers need.
    """
    words = weights.words
    if words is None:
        return
    gate = gate_of(binder, node)
    if gate is not None:
        binder.experts.add_gate(words, gate)
    binder.emit(
        "expert_fetch",
        {},
        {
            "parts": places.parts,
            "table": words.table,
            "weights": places.weights,
            "places": places.count,
            "control": words.control,
            "post": words.post,
            "scores": words.scores,
            "layer": words.number,
            "first": wave.first,
            "experts": places.experts,
            "rows": binder.count(places.counted_by),
            "x": x,
            "x_stride": x.stride,
            "width": x.width,
            "input": words.input,
        },
        chunks=(ONE, 1, 1),
        reads={places.key, x.key},
        writes={places.key},
        label=f"{node.name}/fetch",
    )
