"""Sums over tokens of products of a projection's inputs."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from edgerun_export.quantize.method import Inputs, Needs

F32 = NDArray[np.float32]
F64 = NDArray[np.float64]


class Moments:
    """What ``Inputs`` are the means of; sums of sums may be added in any number of steps.

    Args:
        needs: what is summed.
    """

    def __init__(self, needs: Needs) -> None:
        self._needs = needs
        self._tokens = 0
        self._sums: dict[str, F64] = {}

    @property
    def tokens(self) -> int:
        """How many were added."""
        return self._tokens

    def add(self, value: F32, source: F32 | None = None, strayed: F32 | None = None) -> None:
        """Adds tokens.

        Args:
            value: inputs ``[tokens, K]`` as quantised layers give them.
            source: as the source gives them, of the same tokens.
            strayed: how far the residual stream is from the source's, ``[tokens, N]``.
        """
        self._tokens += len(value)
        self._sum("importance", np.einsum("tk,tk->k", value, value, dtype=np.float64))
        if self._needs >= Needs.HESSIAN:
            self._sum("hessian", value.T @ value)
        if self._needs >= Needs.SOURCE and source is not None:
            self._sum("drift", (source - value).T @ value)
            if strayed is not None:
                self._sum("residual", strayed.T @ value)

    def merge(self, other: Moments) -> None:
        """Adds the sums of another, which is used up: the first sums of a kind are taken over."""
        self._tokens += other._tokens
        for name, value in other._sums.items():
            self._sum(name, value)

    def means(self, width: int) -> Inputs:
        """The means over tokens, all zero where there were none; they take the place of the sums.

        Args:
            width: K.
        """
        tokens = max(1, self._tokens)
        mean, self._sums = self._sums, {}
        for value in mean.values():
            value /= tokens
        mean.setdefault("importance", np.zeros(width))
        if self._needs >= Needs.HESSIAN and "hessian" not in mean:
            mean["hessian"] = np.zeros((width, width))
        return Inputs(**mean)

    def _sum(self, name: str, value: NDArray[np.float32] | F64) -> None:
        if name in self._sums:
            self._sums[name] += value
        else:
            self._sums[name] = value.astype(np.float64, copy=False)
