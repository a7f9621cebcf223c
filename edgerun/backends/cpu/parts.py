"""Long calls in several native programs: nothing stops one of these before its end.

Ctrl-C is heard, and a caller that has left noticed, when Python runs again. Hundreds of rows of a
large model take a slow processor seconds; to leave a program and begin the next takes tens of
microseconds.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from edgerun.graph.ir import Graph
from edgerun.kernels.run.instructions import Instruction

STACK_AXES = 3  # of weights of experts: expert, output, input
MOST_PRODUCTS = 1 << 37  # of a program, about: less than a second of two slow cores


def products_of_row(graph: Graph) -> int:
    """About how many products a row takes: the weights of its nodes, of experts those it chooses.

    A shape is asked for in a tenth of a microsecond, and what ops know of their work in twenty.
    """
    total = 0
    for node in graph.nodes:
        chosen = node.attrs.get("top_k", 0)
        for name in node.inputs:
            if name in graph.constants:
                shape = graph.constants[name].shape
                total += math.prod((chosen, *shape[1:]) if len(shape) == STACK_AXES else shape)
    return total


def parts_of(instructions: Sequence[Instruction], products: int) -> Iterator[Sequence[Instruction]]:
    """Instructions in parts of as many each, for layers are much alike.

    Args:
        instructions: of a call.
        products: that they take, about.
    """
    size = max(1, len(instructions) * MOST_PRODUCTS // products)
    for first in range(0, len(instructions), size):
        yield instructions[first : first + size]
