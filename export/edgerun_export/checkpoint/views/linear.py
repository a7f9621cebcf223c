"""Linear attention of GGUF files, as Hugging Face has it.

llama.cpp has ``-exp(A_log)`` and, of Qwen3-Next, queries, keys and values apart from their gates,
which Hugging Face has in turns, key head by key head. Of Qwen3.5 it has value heads in another
order, the first of each key head before the second of each, in all that belongs to a head: rows of
projections, of the convolution and of vectors, and columns of the output projection.

Source: llama.cpp's ``conversion/qwen.py``.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from edgerun_export.checkpoint.base import Checkpoint, TensorInfo
from edgerun_export.checkpoint.kinds.linear import MODEL_TYPES, RATE
from edgerun_export.checkpoint.views.picked import A_LOG, Numbers, PickedTensors

_QKVZ, _QKV, _Z = (f"linear_attn.in_proj_{name}.weight" for name in ("qkvz", "qkv", "z"))
_OUT = "linear_attn.out_proj.weight"


@dataclass(frozen=True, slots=True)
class Sizes:
    """Heads of linear attention, and their elements."""

    key_heads: int
    value_heads: int
    key_dim: int
    value_dim: int

    @property
    def shared(self) -> int:
        """Value heads of a key head."""
        return self.value_heads // self.key_heads

    def values(self, dim: int, first: int = 0) -> Numbers:
        """The stored row of every row of value heads, ``dim`` each, behind ``first`` others."""
        heads = np.arange(self.value_heads)
        stored = heads % self.shared * self.key_heads + heads // self.shared
        rows = stored[:, None] * dim + np.arange(dim)
        return np.concatenate([np.arange(first), first + rows.ravel()])

    def in_turns(self) -> Numbers:
        """Of each key head the rows of query, key, values and gates, which are stored apart."""
        keys, own = self.key_heads * self.key_dim, self.shared * self.value_dim
        heads = np.arange(self.key_heads)[:, None]
        parts, begin = [], 0
        for size, whole in ((self.key_dim, keys), (self.key_dim, keys), (own, 0), (own, 0)):
            parts.append(begin + heads * size + np.arange(size))
            begin += whole or self.value_heads * self.value_dim
        return np.concatenate(parts, axis=1).ravel()


class LinearHeads(PickedTensors):
    """A checkpoint with heads of linear attention in the order of Hugging Face."""

    def __init__(self, checkpoint: Checkpoint, sizes: Sizes, *, are_tiled: bool) -> None:
        """Looks at the names and shapes of a checkpoint's tensors."""
        super().__init__(checkpoint)
        self._places = {}
        for name, info in self._stored.items():
            if not info.shape:
                continue
            if name.endswith(RATE):
                order = sizes.values(1) if are_tiled else np.arange(sizes.value_heads)
                own = f"{name.rpartition('.')[0]}{A_LOG}"
                self._pick(own, (name,), order, info.shape)
            elif are_tiled:
                self._untile(name, info, sizes)
            elif name.endswith(_QKV):
                module = name.removesuffix(_QKV)
                gates = self._stored.get(module + _Z)
                if gates is not None and gates.shape:
                    shape = (info.shape[0] + gates.shape[0], *info.shape[1:])
                    self._pick(module + _QKVZ, (name, gates.name), sizes.in_turns(), shape)

    def _untile(self, name: str, info: TensorInfo, sizes: Sizes) -> None:
        if sizes.shared == 1:
            return
        queries = 2 * sizes.key_heads * sizes.key_dim
        rows = {
            _QKV: (sizes.value_dim, queries),
            _Z: (sizes.value_dim, 0),
            "linear_attn.in_proj_a.weight": (1, 0),
            "linear_attn.in_proj_b.weight": (1, 0),
            "linear_attn.dt_bias": (1, 0),
            "linear_attn.conv1d.weight": (sizes.value_dim, queries),
        }
        for end, (dim, first) in rows.items():
            if name.endswith(f".{end}"):
                self._pick(name, (name,), sizes.values(dim, first), info.shape)
        if name.endswith(f".{_OUT}"):
            rows_there, columns = np.arange(info.shape[0]), sizes.values(sizes.value_dim)
            self._pick(name, (name,), rows_there, info.shape, columns)


def with_linear_heads(checkpoint: Checkpoint) -> Checkpoint:
    """A checkpoint of a GGUF file with linear attention as Hugging Face has it, if it has any."""
    config = checkpoint.config
    if config.get("model_type") not in MODEL_TYPES:
        return checkpoint
    names = ("num_key_heads", "num_value_heads", "key_head_dim", "value_head_dim")
    sizes = Sizes(*(config[f"linear_{name}"] for name in names))
    if sizes.value_heads % sizes.key_heads:
        return checkpoint  # to be refused by whoever reads the configuration
    return LinearHeads(checkpoint, sizes, are_tiled=config["model_type"] != MODEL_TYPES[0])
