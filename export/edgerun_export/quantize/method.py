"""What a file in this folder says of its quantisation method."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from edgerun.formats.base import BlockFormat, PackedWeight


@dataclass(frozen=True, slots=True)
class Method:
    """A way to find codes and scales for given weights.

    Attributes:
        quantise: takes float32 ``[n, K]``, a format and the number of weights that share a scale;
            K need not be a multiple of that.
        usual_for: formats that are made by it unless an export is asked for another method.
    """

    quantise: Callable[[NDArray[np.float32], BlockFormat, int], PackedWeight]
    usual_for: tuple[str, ...] = ()
