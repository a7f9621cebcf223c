"""What a file in this folder says of its quantisation method."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from edgerun.formats.base import BlockFormat, PackedWeight
from edgerun_export.quantize.hessian import Hessian

F32 = NDArray[np.float32]
F64 = NDArray[np.float64]


class Needs(IntEnum):
    """What a method has to know of a matrix; each includes those before it.

    Attributes:
        ROWS: its weights.
        IMPORTANCE: the mean square of each of its inputs.
        HESSIAN: the mean products of any two of them.
        SOURCE: what the source has in their place.
        RESIDUAL: how far what its output is added to is from the source's.
    """

    ROWS = 0
    IMPORTANCE = 1
    HESSIAN = 2
    SOURCE = 3
    RESIDUAL = 4


@dataclass(frozen=True, slots=True)
class Inputs:
    """What calibration saw of the inputs x of a matrix ``[N, K]``: means over tokens.

    Quantised layers give x, the source x_source. Of experts there is no difference, since other
    tokens go to them in the source.

    Attributes:
        importance: of the square of each input, float64 ``[K]``.
        hessian: of ``x xT``; half the second derivative of the mean squared error of an output
            (Frantar et al. 2022, equation 3). None if it was not asked for.
        drift: of ``(x_source - x) xT``, ``[K, K]``, where several matrices read x.
        change: of ``d xT``, ``[N, K]``, in which d is what the output should differ by: where
            one matrix alone reads x ``W (x_source - x)``, and with ``Needs.RESIDUAL`` what is
            missing from the sum that the output is added to, if it is added as it is.
    """

    importance: F64
    hessian: Hessian | None = None
    drift: F64 | None = None
    change: F64 | None = None

    def of(self, rows: slice) -> Inputs:
        """What is known for some rows of the matrix."""
        return self if self.change is None else replace(self, change=self.change[rows])


Fit: TypeAlias = Callable[[F32, BlockFormat, int, Inputs | None], PackedWeight]


@dataclass(frozen=True, slots=True)
class Method:
    """A way to find codes and scales for given weights.

    Attributes:
        fit: takes rows, float32 ``[n, K]``, a format, the number of weights that share a scale (K
            need not be a multiple of that), and what is known of the inputs: no less than
            ``needs``, and None only where ``needs`` is ``ROWS``. Gets some rows at a time.
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
