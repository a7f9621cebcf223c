"""What a screened head could save at best, from the sizes of a model's matrices."""

from __future__ import annotations

from dataclasses import dataclass

from edgerun.backends.cpu.screen_weights import useful_directions
from edgerun.formats.base import PackedWeight
from edgerun.graph.ir import Graph
from edgerun.graph.ops import LOGITS

SCALE_BYTES = 4
WORTH = 0.05  # share of a decode step's weight bytes that must be saved


@dataclass(frozen=True, slots=True)
class Promise:
    """Bytes that a decode step reads.

    Attributes:
        head: of the full head.
        screen: of the coarse head, without the rows that are then computed exactly.
        step: of all linear layers.
    """

    head: int
    screen: int
    step: int

    @property
    def share(self) -> float:
        """Share of a step's bytes that the screen saves at best."""
        return (self.head - self.screen) / self.step

    @property
    def worth(self) -> bool:
        """Whether trying makes sense."""
        return self.share >= WORTH

    def __str__(self) -> str:
        if not self.worth:
            return f"it could save only {max(0.0, self.share):.0%} of the bytes of a step"
        sizes = f"{self.screen / 1e6:.1f} instead of {self.head / 1e6:.1f} MB"
        return f"it would read {sizes} a token, {self.share:.0%} of a step less at best"


def screen_promise(graph: Graph) -> Promise | None:
    """What screening the head of a graph promises; None if its head cannot be screened."""
    linear = [node for node in graph.nodes if node.op == "linear"]
    heads = [node for node in linear if node.outputs[0] == LOGITS]
    weight = graph.constants[heads[0].inputs[1]] if heads else None
    if not isinstance(weight, PackedWeight) or weight.bits != 8:
        return None
    rows, k = weight.shape
    directions = useful_directions(weight)
    detail = directions + SCALE_BYTES * (directions > 0)
    row = k // 2 + SCALE_BYTES * weight.blocks + detail + SCALE_BYTES  # of the bound
    step = sum(graph.constants[node.inputs[1]].nbytes for node in linear)
    return Promise(weight.nbytes, rows * row + k * directions * SCALE_BYTES, step)
