"""Feed-forward layers of many ternary networks, of which a router chooses a few for each token.

Tokens are sorted by expert, so that each expert is one matrix product over its rows. The networks
are BitNet's without the norm before the down projection, which rounds its input to int8 by each
row's largest value in any case. The router is float32 and reads what the experts read before that
is rounded; the scores of the chosen ones add up to 1.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import linear, one_hot, relu

from tools.train_default.recipe import ModelConfig
from tools.train_default.rounding import round_rows, ternary


class Grouped(torch.autograd.Function):
    """Products of consecutive rows with a matrix each: rows [n, in], weights [experts, out, in]."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weights: Tensor, counts: list[int]) -> Tensor:
        ctx.save_for_backward(x, weights)
        ctx.counts = counts
        out = x.new_empty(len(x), weights.shape[1])
        for weight, rows, target in zip(weights, x.split(counts), out.split(counts), strict=True):
            torch.mm(rows, weight.T, out=target)
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None]:
        x, weights = ctx.saved_tensors
        grad, counts = grad.contiguous(), ctx.counts
        x_grad, weights_grad = torch.empty_like(x), torch.zeros_like(weights)
        parts = zip(
            weights,
            weights_grad,
            x.split(counts),
            grad.split(counts),
            x_grad.split(counts),
            strict=True,
        )
        for weight, weight_grad, rows, rows_grad, target in parts:
            if len(rows):
                torch.mm(rows_grad, weight, out=target)
                torch.mm(rows_grad.T, rows, out=weight_grad)
        return x_grad, weights_grad, None


class TernaryStack(nn.Module):
    """Ternary matrices [experts, out, in]; those of several names are read side by side."""

    def __init__(self, experts: int, in_features: int, std: float, **out_features: int) -> None:
        super().__init__()
        self.sizes = list(out_features.values())
        pairs = [
            (name, nn.Parameter(torch.randn(experts, out, in_features) * std))
            for name, out in out_features.items()
        ]
        self.masters = nn.ParameterDict(pairs)
        self.effective = nn.Parameter(torch.empty(experts, sum(self.sizes), in_features))

    @torch.no_grad()
    def refresh(self) -> None:
        """Quantise the masters; their gradients become views of the quantised weights' one."""
        for master, part in zip(
            self.masters.values(), self.effective.split(self.sizes, dim=1), strict=True
        ):
            part.copy_(ternary(master))
        if self.effective.grad is None:
            self.effective.grad = torch.zeros_like(self.effective)
        self.effective.grad.zero_()
        for master, grad in zip(
            self.masters.values(), self.effective.grad.split(self.sizes, dim=1), strict=True
        ):
            master.grad = grad


def gated(inner: Tensor) -> Tensor:
    """BitNet's squared ReLU of the first half times the second, rounded."""
    gate, up = inner.chunk(2, dim=-1)
    return round_rows(relu(gate).square() * up)


class Experts(nn.Module):
    """A layer of experts.

    Attributes:
        balance: of the latest call, 1 where every expert got as many tokens, and more elsewhere
            (Fedus et al. 2021, equations 4 to 6).
    """

    balance: Tensor

    def __init__(self, config: ModelConfig, std: float, out_std: float) -> None:
        super().__init__()
        self.count, self.top_k = config.experts, config.top_k
        dim, width = config.hidden_size, config.expert_size
        self.router = nn.Parameter(torch.randn(self.count, dim) * dim**-0.5)
        self.inner = TernaryStack(self.count, dim, std, gate_proj=width, up_proj=width)
        self.outer = TernaryStack(self.count, width, out_std, down_proj=dim)
        self.gated = gated

    def forward(self, x: Tensor) -> Tensor:
        """Of [batch, tokens, dim]."""
        rows = x.flatten(0, -2)
        logits = linear(rows, self.router)
        chosen, ids = logits.topk(self.top_k, dim=-1)
        scores = chosen.softmax(dim=-1)
        share = one_hot(ids, self.count).sum(dim=1).float().mean(dim=0) / self.top_k
        self.balance = self.count * (share * logits.softmax(dim=-1).mean(dim=0)).sum()
        order = ids.flatten().argsort(stable=True)
        counts = ids.flatten().bincount(minlength=self.count).tolist()
        places = order // self.top_k
        taken = round_rows(rows)[places]
        inner = Grouped.apply(taken, self.inner.effective, counts)
        parts = Grouped.apply(self.gated(inner), self.outer.effective, counts)
        parts = parts * scores.flatten()[order, None]
        return torch.zeros_like(rows).index_add(0, places, parts).view_as(x)
