"""An activation whose curve every layer has learned."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar


@dataclass(frozen=True, slots=True)
class Xielu:
    """The curve of a layer (Huang and Schlag 2024); see ``edgerun/ops/pointwise/xielu.py``.

    Attributes:
        slope: of the line, the same in all layers.
    """

    slope: float = 0.5

    square: ClassVar[str] = "mlp.act_fn.square"
    bend: ClassVar[str] = "mlp.act_fn.bend"

    @property
    def tensors(self) -> dict[str, tuple[int, ...]]:
        """Paths below ``model.layers.N`` and shapes of the factors of its other terms."""
        return {self.square: (1,), self.bend: (1,)}

    @property
    def softplus(self) -> Mapping[str, float]:
        """See ``Storage``."""
        return {self.square: 0.0, self.bend: self.slope}
