"""BitNet b1.58's rounding of weights and activations (arXiv:2402.17764), straight through."""

from __future__ import annotations

import torch
from torch import Tensor


def ternary(weight: Tensor) -> Tensor:
    """Round matrices [..., out, in] to {-s, 0, s}, s each one's mean absolute value.

    The operations are those of transformers' WeightQuant.
    """
    scale = 1.0 / weight.abs().mean(dim=(-2, -1), keepdim=True).clamp_(min=1e-5)
    return (weight * scale).round().clamp(-1, 1) / scale


class ActQuant(torch.autograd.Function):
    """Round each row to int8 levels of its largest absolute value; straight-through gradient."""

    @staticmethod
    def forward(ctx: object, x: Tensor) -> Tensor:
        scale = 127 / x.abs().max(dim=-1, keepdim=True).values.clamp(min=1e-5)
        return (x * scale).round().clamp(-128, 127) / scale

    @staticmethod
    def backward(ctx: object, grad: Tensor) -> Tensor:
        return grad


def round_rows(x: Tensor) -> Tensor:
    """``ActQuant`` as a function."""
    rounded: Tensor = ActQuant.apply(x)
    return rounded
