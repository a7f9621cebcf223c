"""Random weights with which attention is peaked, experts differ and states remember."""

from __future__ import annotations

import re
from collections.abc import Callable
from itertools import chain
from typing import TypeAlias

import torch

# Of noise, and of what the model began with.
Fill: TypeAlias = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def randomise(model: torch.nn.Module) -> None:
    """Fills every parameter, and every buffer that is saved."""
    stored = model.state_dict()
    for name, values in chain(model.named_parameters(), model.named_buffers()):
        if name in stored and values.is_floating_point():
            fill = _fill_of(name, values.dim())
            values.data.copy_(fill(torch.randn(values.shape), values.data))


def _fill_of(name: str, dimensions: int) -> Fill:
    by_name = (fill for pattern, fill in _BY_NAME if re.search(pattern, name))
    return next(by_name, _vector if dimensions < 2 else _matrix)


def _near(middle: float, spread: float) -> Fill:
    return lambda noise, began: middle + spread * noise


def _norm(noise: torch.Tensor, began: torch.Tensor) -> torch.Tensor:
    """Around 1, or around 0 where the model adds 1."""
    return began.float().mean().round() + 0.3 * noise


def _vector(noise: torch.Tensor, began: torch.Tensor) -> torch.Tensor:
    return 0.3 * noise


def _matrix(noise: torch.Tensor, began: torch.Tensor) -> torch.Tensor:
    scaled: torch.Tensor = 1.5 * noise * noise.shape[-1] ** -0.5
    return scaled


def _modality(noise: torch.Tensor, began: torch.Tensor) -> torch.Tensor:
    """Larger, because it reads values that are divided by their number."""
    return _matrix(noise, began) * (noise.shape[-1] / 4)


# The first that fits.
_BY_NAME: tuple[tuple[str, Fill], ...] = (
    (r"A_log$", _near(-1.5, 1)),  # so that some heads remember long
    (r"dt_bias$", _near(-1, 1)),
    (r"\.D$", _near(1, 0.5)),
    (r"layer_scalar$", _near(0.8, 0.2)),
    (r"(correction_bias|expert_bias)$", _near(0, 0.2)),
    (r"(\.|per_expert_)scale$", _near(1, 0.3)),
    (r"sinks$", _near(0, 1)),
    (r"norm[^.]*\.weight$", _norm),
    (r"embed_tokens|embeddings", _near(0, 0.4)),
    (r"modality_router", _modality),
    (r"conv[^.]*\.weight$", _near(0, 0.6)),
    (r"_bias$", _near(0, 0.3)),
    (r"act_fn\.(beta|eps)$", lambda noise, began: began),  # which are the same in all checkpoints
)
