"""A ternary matrix that learns, gradients passing straight through its rounding."""

from __future__ import annotations

import torch
from torch import Tensor

from tools.ternary.codes import Trained

EDGE = 1.4  # units farther out would take long to come back


class Matrix:
    """Units and scales of a matrix, and the weights that they stand for.

    Attributes:
        weight: ``[N, K]``, a leaf of the graph; its gradient becomes that of units and scales.
        units: float32 ``[N, groups, 32]``.
        log_scales: float32 ``[N, groups]``.
    """

    def __init__(self, trained: Trained, dtype: torch.dtype) -> None:
        self._columns, self._dtype = trained.columns, dtype
        self.units = torch.from_numpy(trained.units.copy())
        self.log_scales = torch.from_numpy(trained.scales.copy()).clamp(min=1e-8).log()
        self.refresh()

    @torch.no_grad()
    def refresh(self) -> None:
        """Makes the weights anew; call after every step."""
        self.units.clamp_(-EDGE, EDGE)
        codes = self.units.round().clamp_(-1, 1)
        weight = (codes * self.log_scales.exp()[..., None]).flatten(1)[:, : self._columns]
        self.weight = weight.to(self._dtype).contiguous().requires_grad_()

    @torch.no_grad()
    def spread(self) -> None:
        """Hands the gradient of the weights to units and scales.

        A unit gets that of its weight as if it were not rounded, a scale that of its group.
        """
        assert self.weight.grad is not None
        more = self.units.shape[1] * self.units.shape[2] - self._columns
        grad = torch.nn.functional.pad(self.weight.grad.float(), (0, more)).view_as(self.units)
        grad = grad * self.log_scales.exp()[..., None]
        codes = self.units.round().clamp(-1, 1)
        self.log_scales.grad = (grad * codes).sum(-1)
        self.units.grad = grad
        self.weight.grad = None

    def trained(self) -> Trained:
        """The state as arrays."""
        return Trained(self.units.numpy(), self.log_scales.exp().numpy(), self._columns)


class Optimiser:
    """Adam whose rates rise and fall together.

    Args:
        matrices: whose units and scales learn.
        plain: vectors that learn.
        rate: of units at most, in codes a step.
        scale_rate: of logarithms of scales at most, and of the vectors.

    Attributes:
        adam: the state.
    """

    def __init__(
        self, matrices: list[Matrix], plain: list[Tensor], rate: float, scale_rate: float
    ) -> None:
        params = {
            "units": [each.units for each in matrices],
            "scales": [each.log_scales for each in matrices],
            "plain": plain,
        }
        peaks = {"units": rate, "scales": scale_rate, "plain": scale_rate}
        self._peaks = [peaks[name] for name, tensors in params.items() if tensors]
        groups = [{"params": tensors} for tensors in params.values() if tensors]
        self.adam = torch.optim.Adam(groups, lr=rate, betas=(0.9, 0.95), fused=True)

    def step(self, factor: float) -> None:
        """A step by the gradients that are there, at a fraction of the highest rates."""
        for group, peak in zip(self.adam.param_groups, self._peaks, strict=True):
            group["lr"] = peak * factor
        self.adam.step()
