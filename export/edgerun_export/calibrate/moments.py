"""Sums over tokens of products of a projection's inputs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from edgerun_export.quantize.hessian import Hessian
from edgerun_export.quantize.method import Inputs, Needs

F32 = NDArray[np.float32]
F64 = NDArray[np.float64]
_STRIP = 512  # columns that are summed at a time


@dataclass(frozen=True, slots=True)
class Tokens:
    """What came to projections of the tokens of a window.

    Attributes:
        value: inputs ``[tokens, K]`` as quantised layers give them.
        drift: what they are less than those of the source, ``[tokens, K]``, if that is summed.
        change: what outputs should differ by, ``[tokens, N]``, if that is summed.
    """

    value: F32
    drift: F32 | None = None
    change: F32 | None = None


class Moments:
    """What ``Inputs`` are the means of.

    Sums of K inputs by K are half a matrix, and are made in strips: a strip depends on no other,
    so that any number of threads makes the same.

    Args:
        needs: what is summed.
        width: K.
    """

    def __init__(self, needs: Needs, width: int) -> None:
        self._needs, self._width = needs, width
        self.tokens = 0
        self._importance = np.zeros(width)
        # Pages that no strip comes to take no memory.
        self._hessian = np.zeros((width, width)) if needs >= Needs.HESSIAN else None
        self._drift: F64 | None = None
        self._change: F64 | None = None

    def add(self, windows: Sequence[Tokens]) -> None:
        """Adds tokens."""
        for strip in self.begin(windows):
            self.add_strip(strip, windows)

    def begin(self, windows: Sequence[Tokens]) -> list[slice]:
        """Counts tokens; the strips that it gives are to be added next, in any order."""
        for tokens in windows:
            self.tokens += len(tokens.value)
            if tokens.drift is not None and self._drift is None:
                self._drift = np.zeros((self._width, self._width))
            if tokens.change is not None and self._change is None:
                self._change = np.zeros((tokens.change.shape[1], self._width))
        return self._strips() if windows else []

    def add_strip(self, strip: slice, windows: Sequence[Tokens]) -> None:
        """Adds what some of the inputs have to do with all before them."""
        for tokens in windows:
            value = tokens.value
            part = value[:, strip]
            self._importance[strip] += np.einsum("tk,tk->k", part, part, dtype=np.float64)
            if self._hessian is not None:
                self._hessian[strip, : strip.stop] += part.T @ value[:, : strip.stop]
            if self._drift is not None and tokens.drift is not None:
                self._drift[strip] += tokens.drift[:, strip].T @ value
            if self._change is not None and tokens.change is not None:
                self._change[:, strip] += tokens.change.T @ part

    def means(self) -> Inputs:
        """The means over tokens, all zero where there were none; they take the sums' place."""
        tokens = max(1, self.tokens)
        self._importance /= tokens
        for sums in (self._drift, self._change):
            if sums is not None:
                sums /= tokens
        hessian, self._hessian = self._hessian, None
        if hessian is not None:
            for strip in self._strips():
                hessian[strip, : strip.stop] /= tokens
        return Inputs(
            self._importance,
            None if hessian is None else Hessian(hessian),
            self._drift,
            self._change,
        )

    def _strips(self) -> list[slice]:
        starts = range(0, self._width, _STRIP)
        return [slice(start, min(start + _STRIP, self._width)) for start in starts]
