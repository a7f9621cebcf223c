"""State spaces of GGUF files, as Hugging Face has them.

llama.cpp has ``-exp(A_log)``, and of Granite 4 gate and up projection of a network apart, which
Hugging Face has in one. Source: llama.cpp's ``conversion/mamba.py`` and ``conversion/granite.py``.
"""

from __future__ import annotations

import numpy as np

from edgerun_export.checkpoint.base import Checkpoint
from edgerun_export.checkpoint.kinds.state_spaces import APART, JOINED, MODEL_TYPES, RATES
from edgerun_export.checkpoint.views.picked import A_LOG, PickedTensors


class StateSpaces(PickedTensors):
    """A checkpoint with state spaces, and networks in one tensor, as Hugging Face has them."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        """Looks at the names and shapes of a checkpoint's tensors."""
        super().__init__(checkpoint)
        self._places = {}
        for name, info in self._stored.items():
            if name.endswith(RATES) and info.shape:
                own = f"{name.rpartition('.')[0]}{A_LOG}"
                self._pick(own, (name,), np.arange(info.shape[0]), info.shape)
            elif name.endswith(APART[0]):
                self._join(name.removesuffix(APART[0]))

    def _join(self, module: str) -> None:
        gate, up = (self._stored.get(f"{module}{end}") for end in APART)
        if gate is not None and up is not None and gate.shape and up.shape:
            height = gate.shape[0] + up.shape[0]
            names = (gate.name, up.name)
            shape = (height, *gate.shape[1:])
            self._pick(f"{module}{JOINED}", names, np.arange(height), shape)


def with_state_spaces(checkpoint: Checkpoint) -> Checkpoint:
    """A checkpoint of a GGUF file with state spaces as Hugging Face has it, if it has any."""
    if checkpoint.config.get("model_type") not in MODEL_TYPES:
        return checkpoint
    return StateSpaces(checkpoint)
