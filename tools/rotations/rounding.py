"""Rotations, and roundings that gradients pass straight through."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad

from edgerun.formats.base import BlockFormat

RATIOS = (0.7, 0.8, 0.9, 1.0)  # of the largest magnitude, of which scales are searched


def random_rotation(size: int, seed: int) -> Tensor:
    """Orthogonal float64 ``[size, size]``."""
    generator = torch.Generator().manual_seed(seed)
    gaussian = torch.randn(size, size, generator=generator, dtype=torch.float64)
    q, r = torch.linalg.qr(gaussian)
    return q * r.diagonal().sign()


def cayley(matrix: Tensor) -> Tensor:
    """``(I + A/2)^-1 (I - A/2)`` of the skew part A of a matrix: a rotation."""
    half = (matrix - matrix.T) / 4
    identity = torch.eye(len(matrix), dtype=matrix.dtype)
    return torch.linalg.solve(identity + half, identity - half)


def rounded_weights(weight: Tensor, layout: BlockFormat, block: int) -> Tensor:
    """Weights ``[N, K]`` on a grid for every block, whose scale is searched for the least error."""
    columns = weight.shape[1]
    blocks = pad(weight, (0, -columns % block)).unflatten(1, (-1, block))
    with torch.no_grad():
        largest = blocks.abs().amax(-1, keepdim=True).clamp(min=1e-9) / -layout.low
        tried = [largest * ratio * sign for ratio in RATIOS for sign in (1, -1)]
        errors = [(_on_grid(blocks, each, layout) - blocks).square().sum(-1) for each in tried]
        best = torch.stack(errors).argmin(0)[None, ..., None]
        scale = torch.stack(tried).gather(0, best)[0]
        rounded = _on_grid(blocks, scale, layout)
    return (blocks + (rounded - blocks).detach()).flatten(1)[:, :columns]


def rounded_inputs(x: Tensor, bits: int) -> Tensor:
    """Each token's inputs to codes of its largest magnitude; 16 bits stand for floats."""
    if bits == 16:
        return x
    last = 2 ** (bits - 1) - 1
    scale = x.detach().abs().amax(-1, keepdim=True).clamp(min=1e-9) / last
    return x + ((x / scale).round() * scale - x).detach()


def _on_grid(values: Tensor, scale: Tensor, layout: BlockFormat) -> Tensor:
    return (values / scale).round().clamp(layout.low, layout.high) * scale
