"""The router of a layer, run on what an earlier layer got: a guess at what it will need.

Residual connections carry most of a row from layer to layer, so that the next router says of this
layer's input nearly what it will say of its own.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from edgerun.backends.cpu.binder import Binder
from edgerun.backends.cpu.weights import DenseWeight
from edgerun.graph.ir import Constant, Node
from edgerun.graph.mapped_file import read_array
from edgerun.ops.route import ALL, Groups, ranking


@dataclass(frozen=True, slots=True)
class Gate:
    """What says where the rows of a layer go.

    Attributes:
        weight: float32 ``[experts, width]`` or wider.
        bias: float32 ``[experts]``, or None.
        norm: float32 ``[width]``, what the normalised input was multiplied with; None if that is
            unlike in other layers.
        top_k: how many experts a row goes to.
        scoring: what makes scores of logits.
        selection_bias: float32 ``[experts]``, what is added to something for the choice, or None.
        biased: what that is: scores or logits.
        groups: of experts, of which some are chosen first.
        ratios: of the norm to those of other gates, by their ``id``; with these, since an ``id``
            may be given again to what comes after them.
    """

    weight: NDArray[np.float32]
    bias: NDArray[np.float32] | None
    norm: NDArray[np.float32] | None
    top_k: int
    scoring: str = "softmax"
    selection_bias: NDArray[np.float32] | None = None
    biased: str = "scores"
    groups: Groups = ALL
    ratios: dict[int, tuple[Gate, NDArray[np.float32]]] = field(
        default_factory=dict, repr=False, compare=False
    )

    def guess(self, row: NDArray[np.float32], other: Gate) -> list[int]:
        """The experts that a row will go to, which is float32 ``[width]`` at another gate now.

        The likeliest is the first.
        """
        if self.norm is not None and other.norm is not None:
            if id(other) not in self.ratios:
                self.ratios[id(other)] = other, _ratio(self.norm, other.norm)
            row = row * self.ratios[id(other)][1]
        # Unlike a matrix product this starts no threads of a library, which would spin.
        logits = np.einsum("ij,j->i", self.weight[:, : len(row)], row)
        if self.bias is not None:
            logits += self.bias
        ranks = ranking(
            logits,
            self.selection_bias,
            scoring=self.scoring,
            biased=self.biased,
            groups=self.groups,
        )
        return [int(expert) for expert in np.argsort(-ranks, kind="stable")[: self.top_k]]


def _ratio(norm: NDArray[np.float32], other: NDArray[np.float32]) -> NDArray[np.float32]:
    """One norm over another; 1 where the other is 0."""
    ratio = np.ones_like(norm)
    np.divide(norm, other, out=ratio, where=other != 0)
    return ratio


def gate_of(binder: Binder, node: Node) -> Gate | None:
    """The gate of a layer of experts, if it is a product with a float32 matrix.

    Its weights are those in memory for the program.
    """
    constants, (x_name, routes_name) = binder.graph.constants, node.inputs[:2]
    route = binder.producers.get(routes_name)
    if route is None or route.op != "route":
        return None
    linear = binder.producers.get(route.inputs[0])
    if linear is None or linear.op != "linear" or linear.inputs[0] != x_name:
        return None
    operands = [constants.get(name) for name in linear.inputs[1:]]
    weight, bias = operands[0], operands[1] if len(operands) > 1 else None
    if not isinstance(weight, np.ndarray) or any(linear.inputs[3:]):
        return None
    dense = binder.weights.prepare(weight, str(linear.attrs["activations"]))
    assert isinstance(dense, DenseWeight)
    norm = binder.producers.get(x_name)
    factors = constants.get(norm.inputs[1]) if norm is not None and norm.op == "rms_norm" else None
    return Gate(
        dense.values,
        _vector(bias),
        _vector(factors),
        node.attrs["top_k"],
        route.attrs["scoring"],
        _vector(constants.get(route.inputs[1])) if len(route.inputs) > 1 else None,
        route.attrs["biased"],
        Groups.of(route.attrs),
    )


def _vector(constant: Constant | None) -> NDArray[np.float32] | None:
    return read_array(constant) if isinstance(constant, np.ndarray) else None
