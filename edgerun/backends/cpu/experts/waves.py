"""Layers whose experts are read while they run: they ask for them, a wave after the other.

A batch may need more experts of a layer than there are slots. Then the layer is computed in waves
of as many as half of the slots take, so that those of the next wave are read meanwhile.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from edgerun.backends.cpu.binder import ONE, Binder
from edgerun.backends.cpu.experts.places import Places
from edgerun.backends.cpu.experts.weights import ExpertWeights
from edgerun.graph.ir import Node
from edgerun.kernels.jit.service import compiled
from edgerun.kernels.run.parts import WITHIN_WORDS


@dataclass(frozen=True, slots=True)
class Wave:
    """Some of the experts that a layer needs.

    Attributes:
        number: of the wave.
        first: part that it begins with.
        parts: most that it has.
        is_only: there are no others.
    """

    number: int
    first: int
    parts: int
    is_only: bool


def waves_of(weights: ExpertWeights, places: Places) -> list[Wave]:
    """The waves of a layer, as many as its batches may take."""
    most = min(places.experts, places.count)
    size = most
    if weights.words is not None and weights.slots < most:
        size = weights.wave
    firsts = range(0, most, size)
    return [Wave(number, first, size, len(firsts) == 1) for number, first in enumerate(firsts)]


def emit_fetch(
    binder: Binder, node: Node, weights: ExpertWeights, places: Places, wave: Wave
) -> None:
    """Emits what asks for the experts of a wave; nothing where all are in memory."""
    words = weights.words
    if words is None:
        return
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
            "marks": None if wave.is_only else places.marks,
            "wave": wave.parts,
            "layer": words.number,
            "first": wave.first,
            "experts": places.experts,
        },
        chunks=(ONE, 1, 1),
        reads={places.key},
        writes={places.key},
        label=f"{node.name}/fetch",
    )


def keep_to(binder: Binder, places: Places, wave: Wave) -> None:
    """Makes the instruction that was emitted last leave places of other waves alone."""
    if wave.is_only:
        return
    step = binder.instructions.pop()
    addresses = [array.ctypes.data for array in (step.arguments, places.marks)]
    block = np.array([0, *addresses, wave.number], np.int64)
    assert len(block) == WITHIN_WORDS
    binder.operands += [step.arguments, block]
    binder.calls.append((block, step.code))
    within = compiled("runner-within", binder.options.progress)
    reads = step.reads | {places.key}
    binder.instructions.append(replace(step, code=within, arguments=block, fields=(), reads=reads))
