"""Traces of experts that no model made, with stated popularity and stated reuse."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from edgerun.errors import InputError
from edgerun.offload.trace_file import CHOICE, NO_EXPERT, Trace

MAX_ZIPF = 10  # what is as good as never drawn could else not be drawn at all


@dataclass(frozen=True)
class Synthetic:
    """What a trace shall be like.

    A token keeps each expert of the token before with probability ``reuse``; it draws the others
    with probabilities ``1 / rank ** zipf``, without putting back. Ranks are dealt anew in each
    layer. Weights are those of a softmax over normal numbers, the largest first, whichever expert.

    Attributes:
        tokens: how many.
        layers: how many.
        experts: of a layer.
        top_k: experts of a token.
        zipf: exponent of popularity; 0 makes all equal.
        reuse: probability, 0 to 1.
        seed: of the random numbers.

    Raises:
        InputError: the sizes do not belong together.
    """

    tokens: int = 1000
    layers: int = 2
    experts: int = 64
    top_k: int = 8
    zipf: float = 0.0
    reuse: float = 0.0
    seed: int = 0

    def __post_init__(self) -> None:
        """Refuses sizes that do not belong together."""
        fits = self.top_k <= self.experts < NO_EXPERT
        if min(self.tokens, self.layers, self.top_k) < 1 or not fits:
            raise InputError(
                f"{self.tokens} tokens, {self.layers} layers, {self.top_k} of {self.experts} "
                f"experts; expected 1 or more of each, and at most {NO_EXPERT - 1} experts"
            )
        if not (0 <= self.zipf <= MAX_ZIPF and 0 <= self.reuse <= 1):
            raise InputError(
                f"Zipf exponent {self.zipf:g} and reuse {self.reuse:g}; expected 0 to {MAX_ZIPF} "
                "and 0 to 1"
            )

    @property
    def name(self) -> str:
        """What tables call it."""
        return f"synthetic, Zipf {self.zipf:g}, reuse {self.reuse:g}"

    def trace(self) -> Trace:
        """Makes the trace."""
        rng = np.random.default_rng(self.seed)
        choices = np.zeros((self.tokens, self.layers, self.top_k), CHOICE)
        for layer in range(self.layers):
            choices["expert"][:, layer] = self._experts(rng)
        logits = rng.standard_normal(choices.shape)
        weights = np.exp(logits) / np.exp(logits).sum(axis=2, keepdims=True)
        choices["weight"] = -np.sort(-weights, axis=2)
        return Trace(self.name, tuple(range(self.layers)), self.experts, 0, choices)

    def _experts(self, rng: np.random.Generator) -> list[list[int]]:
        """The experts of each token in one layer."""
        popularity = rng.permutation(1.0 / np.arange(1, self.experts + 1) ** self.zipf)
        chosen: list[list[int]] = []
        for _ in range(self.tokens):
            before = chosen[-1] if chosen else []
            stay = [expert for expert in before if rng.random() < self.reuse]
            left = popularity.copy()
            left[stay] = 0
            if len(stay) < self.top_k:
                count = self.top_k - len(stay)
                new = rng.choice(self.experts, count, replace=False, p=left / left.sum())
                stay += new.tolist()
            chosen.append(stay)
        return chosen
