"""Long calls in several native programs: nothing stops one of these before its end.

Ctrl-C is heard, and a caller that has left noticed, when Python runs again. Hundreds of rows of a
large model take a slow processor ten seconds; to leave a program and begin the next takes tens of
microseconds.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from edgerun.graph.ir import Graph
from edgerun.kernels.run.instructions import Instruction

MOST_PRODUCTS = 1 << 37  # of a program, about: 0.2 s of a fast desktop, one of two slow cores


def weights_of(graph: Graph) -> int:
    """Weights of a graph: about as many products as a row takes, if there are no experts."""
    return sum(math.prod(constant.shape) for constant in graph.constants.values())


def parts_of(instructions: Sequence[Instruction], products: int) -> Iterator[Sequence[Instruction]]:
    """Instructions in parts of as many each, for layers are much alike.

    Args:
        instructions: of a call.
        products: that they take, about.
    """
    size = max(1, len(instructions) * MOST_PRODUCTS // products)
    for first in range(0, len(instructions), size):
        yield instructions[first : first + size]
