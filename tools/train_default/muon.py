"""Muon (Keller Jordan et al., 2024): momentum whose update is orthogonalised, for matrices."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import torch
from torch import Tensor, nn


def orthogonalise(update: Tensor, steps: int = 5, products: torch.dtype = torch.float32) -> Tensor:
    """Nearest semi-orthogonal matrices [batch, rows, columns], by quintic Newton-Schulz steps.

    The steps bear products in bfloat16 (Jordan et al.).
    """
    a, b, c = 3.4445, -4.7750, 2.0315
    tall = update.shape[1] > update.shape[2]
    x = update.mT if tall else update
    x = (x / (x.norm(dim=(1, 2), keepdim=True) + 1e-7)).to(products)
    for _ in range(steps):
        square = x @ x.mT
        x = a * x + (b * square + c * square @ square) @ x
    return (x.mT if tall else x).to(update.dtype)


class Muon:
    """Matrices of one shape are orthogonalised together; gradients are read from `.grad`."""

    def __init__(
        self,
        parameters: Sequence[nn.Parameter],
        lr: float,
        momentum: float,
        products: torch.dtype = torch.float32,
    ) -> None:
        self.lr, self.momentum, self.weight_decay = lr, momentum, 0.0
        self.products = products
        shapes: dict[torch.Size, list[nn.Parameter]] = defaultdict(list)
        for parameter in parameters:
            shapes[parameter.shape].append(parameter)
        self.groups = list(shapes.values())
        self.buffers = [torch.zeros(len(group), *group[0].shape) for group in self.groups]

    @torch.no_grad()
    def step(self) -> None:
        for group, buffer in zip(self.groups, self.buffers, strict=True):
            grad = torch.stack([p.grad for p in group if p.grad is not None])
            buffer.lerp_(grad, 1 - self.momentum)
            grad.lerp_(buffer, self.momentum)  # Nesterov
            update = orthogonalise(grad, products=self.products)
            rows, columns = group[0].shape
            scale = self.lr * max(1.0, rows / columns) ** 0.5
            for parameter, change in zip(group, update, strict=True):
                parameter.mul_(1 - self.lr * self.weight_decay).sub_(change, alpha=scale)

    def state_dict(self) -> list[Tensor]:
        return self.buffers

    def load_state_dict(self, buffers: Sequence[Tensor]) -> None:
        for mine, saved in zip(self.buffers, buffers, strict=True):
            mine.copy_(saved)
