"""Curves of activations, which GGUF files have among their metadata (Apertus).

Source: llama.cpp's ``conversion/apertus.py``: a number a layer of what are tensors to Hugging Face.
"""

from __future__ import annotations

import numpy as np

from edgerun_export.checkpoint.base import F32, I8, Array, Checkpoint, TensorInfo
from edgerun_export.checkpoint.views.base import Replacing

CURVES = "xielu"  # the key of the configuration that has them meanwhile


class Curves(Replacing):
    """A checkpoint with the numbers of its configuration as tensors of one element."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        super().__init__(checkpoint)
        self.config = {key: value for key, value in checkpoint.config.items() if key != CURVES}
        self._values = {
            f"model.layers.{layer}.mlp.act_fn.{name}": value
            for name, values in checkpoint.config[CURVES].items()
            for layer, value in enumerate(values)
        }
        self._own = {name: TensorInfo(name, (1,), "F32") for name in self._values}

    def read(self, name: str, rows: slice | None = None) -> Array:
        """Read rows as float32; see ``Checkpoint.read``."""
        if name not in self._own:
            return self._checkpoint.read(name, rows)
        first, end = self._bounds(name, rows)
        return np.array([self._values[name]], np.float32)[first:end]

    def integers(self, name: str, rows: slice | None = None) -> tuple[I8, F32] | None:
        """Read codes and scales, which none has by itself; see ``Checkpoint.integers``."""
        return None if name in self._own else self._checkpoint.integers(name, rows)


def with_curves(checkpoint: Checkpoint) -> Checkpoint:
    """A checkpoint whose curves are tensors; one without is returned as it is."""
    return Curves(checkpoint) if CURVES in checkpoint.config else checkpoint
