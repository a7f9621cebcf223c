"""What a file in this folder says of its quantisation method."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from edgerun.formats.base import BlockFormat, PackedWeight

F32 = NDArray[np.float32]
F64 = NDArray[np.float64]


class Needs(IntEnum):
    """What a method has to know of a matrix; each includes those before it.

    Attributes:
        ROWS: its weights.
        IMPORTANCE: the mean square of each of its inputs.
        HESSIAN: the mean products of any two of them.
        SOURCE: what the source has in their place.
    """

    ROWS = 0
    IMPORTANCE = 1
    HESSIAN = 2
    SOURCE = 3


@dataclass(frozen=True, slots=True)
class Inputs:
    """What calibration saw of the inputs x of a matrix ``[N, K]``: means over tokens.

    Attributes:
        importance: of the square of each input, float64 ``[K]``.
        hessian: of ``x xT``, float64 ``[K, K]``; half the second derivative of the mean squared
            error of an output (Frantar et al. 2022, equation 3). None if it was not asked for.
        drift: of ``(x_source - x) xT``, ``[K, K]``: x as quantised layers give it, x_source as
            the source does. None of experts, to which other tokens go in the source.
        residual: of ``(r_source - r) xT``, ``[N, K]``: r is what the output is added to. None
            where it is added to nothing, or not as it is.
    """

    importance: F64
    hessian: F64 | None = None
    drift: F64 | None = None
    residual: F64 | None = None


Fit: TypeAlias = Callable[[F32, BlockFormat, int, Inputs | None], PackedWeight]


@dataclass(frozen=True, slots=True)
class Method:
    """A way to find codes and scales for given weights.

    Attributes:
        fit: takes float32 ``[n, K]``, a format, the number of weights that share a scale (K need
            not be a multiple of that), and what is known of the inputs: no less than ``needs``,
            and None only where ``needs`` is ``ROWS``.
        needs: what it has to know.
        formats: those that it can make; empty for all.
        usual_for: formats that are made by it unless an export is asked for another method.
        makes_zeros: whether it can make formats whose blocks have zero points of their own.
        makes_offsets: whether it can make formats whose blocks have offsets.
    """

    fit: Fit
    needs: Needs = Needs.ROWS
    formats: tuple[str, ...] = ()
    usual_for: tuple[str, ...] = ()
    makes_zeros: bool = False
    makes_offsets: bool = False
