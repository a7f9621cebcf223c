"""A whole decoder in torch."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import kl_div

from edgerun_export.source.weights import SourceWeights
from tools.torch_llama.layer import Layer, Weights, plain_product


class Model:
    """A decoder whose layers are given when it runs.

    Args:
        source: gives embedding and head.
        tokens: length of windows.
        dtype: of products.
        product: of inputs and a projection.

    Attributes:
        embedding: float32 ``[vocab, hidden_size]``.
        head: in the type of products.
        final_norm: float32 ``[hidden_size]``.
    """

    def __init__(
        self,
        source: SourceWeights,
        tokens: int,
        dtype: torch.dtype = torch.float32,
        product: Callable[[Tensor, Tensor], Tensor] | None = None,
    ) -> None:
        spec = source.spec
        self._layers = [Layer(spec, layer, tokens, product) for layer in range(spec.num_layers)]
        self.embedding = torch.from_numpy(source.matrix(spec.embedding_weight))
        self.head = torch.from_numpy(source.matrix(source.head_name())).to(dtype)
        self.final_norm = torch.from_numpy(source.vector(spec.final_norm_weight).copy())

    def logits(self, ids: Tensor, layers: list[Weights], final_norm: Tensor) -> Tensor:
        """Float32 ``[windows, tokens, vocab]``."""
        x = self.embedding[ids]
        for functions, weights in zip(self._layers, layers, strict=True):
            x = functions.run(x, weights)
        return plain_product(self._layers[0].normed(x, final_norm), self.head)


def divergence(student: Tensor, teacher: Tensor) -> Tensor:
    """Mean over tokens of KL(teacher || student) of logits, in nats."""
    logs, target = (each.flatten(0, 1).log_softmax(-1) for each in (student, teacher))
    return kl_div(logs, target, reduction="batchmean", log_target=True)
