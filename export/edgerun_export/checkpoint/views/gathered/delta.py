"""Linear attention whose queries, keys and values are stored apart, as one tensor of all.

OLMo Hybrid has a projection and a convolution of each, and norms may have other names there, in
some layers or all (transformers 5.24, ``modular_olmo_hybrid.py`` and ``conversion_mapping.py``).
"""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import replace
from typing import cast

import numpy as np

from edgerun.errors import CheckpointError
from edgerun_export.checkpoint.base import F32, Affine, Array, Checkpoint, Integers
from edgerun_export.checkpoint.views.base import Parts, Read, Replacing

_MODEL_TYPE = "olmo_hybrid"
_KINDS = ("q", "k", "v")  # in the order of the rows
_PART = re.compile(r"(model\.layers\.\d+\.linear_attn)\.([qkv])_(proj|conv1d)\.weight")
_NORM = re.compile(r"(model\.layers\.\d+)\.(attention_layer_norm|feedforward_layer_norm)\.weight")
_NORMS = {
    "attention_layer_norm": "input_layernorm",
    "feedforward_layer_norm": "post_attention_layernorm",
}
_WHOLE = {"proj": "in_proj_qkv", "conv1d": "conv1d"}


class JoinedDelta(Replacing):
    """A checkpoint with one projection and one convolution of queries, keys and values."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        """Looks at the names of a checkpoint's tensors; what is not complete stays as it is.

        Raises:
            CheckpointError: a norm is there under both of its names.
        """
        super().__init__(checkpoint)
        self._joined: dict[str, list[str]] = {}
        apart: dict[str, dict[str, str]] = defaultdict(dict)
        for name in self._stored:
            match = _PART.fullmatch(name)
            if match is not None:
                apart[f"{match[1]}.{_WHOLE[match[3]]}.weight"][match[2]] = name
            norm = _NORM.fullmatch(name)
            if norm is not None:
                self._rename(name, f"{norm[1]}.{_NORMS[norm[2]]}.weight")
        for name, parts in apart.items():
            if {*parts} == {*_KINDS} and self._are_alike(name, parts):
                self._join(name, [parts[kind] for kind in _KINDS])

    def _are_alike(self, name: str, parts: dict[str, str]) -> bool:
        """Whether a projection has as many queries as keys, and as many as the model is said to.

        Convolutions need not be cut where projections are: transformers writes thirds.
        """
        if not name.endswith("in_proj_qkv.weight"):
            return True
        queries, keys = (self._stored[parts[kind]].shape[:1] for kind in "qk")
        heads = self.config.get("linear_num_key_heads")
        size = self.config.get("linear_key_head_dim")
        if isinstance(heads, int) and isinstance(size, int) and keys != (heads * size,):
            return False
        return queries == keys

    def _rename(self, stored: str, name: str) -> None:
        if name in self._stored:
            raise CheckpointError(
                f"tensor '{name}' is there twice, the other time as '{stored}'; remove one of both"
            )
        self._join(name, [stored])

    def _join(self, name: str, stored: list[str]) -> None:
        infos = [self._stored[each] for each in stored]
        shapes = {info.shape[1:] for info in infos}
        if len(shapes) > 1 or not all(info.shape for info in infos):
            return  # which is refused where these are compared with what config.json says
        for each in stored:
            del self._others[each]
        shape = (sum(info.shape[0] for info in infos), *shapes.pop())
        self._own[name] = replace(infos[0], name=name, shape=shape)
        self._joined[name] = stored

    def read(self, name: str, rows: slice | None = None) -> Array:
        """Read rows as float32; see ``Checkpoint.read``."""
        if name not in self._own:
            return self._checkpoint.read(name, rows)
        parts = self._parts(name, rows, lambda each, part: (self._checkpoint.read(each, part),))
        assert parts is not None
        return parts[0]

    def integers(self, name: str, rows: slice | None = None) -> tuple[Integers, F32] | None:
        """Read codes and scales; see ``Checkpoint.integers``."""
        if name not in self._own:
            return self._checkpoint.integers(name, rows)
        return self._parts(name, rows, self._checkpoint.integers)

    def affine(self, name: str, rows: slice | None = None) -> Affine | None:
        """Read codes, scales and minima; see ``Checkpoint.affine``."""
        if name not in self._own:
            return self._checkpoint.affine(name, rows)
        parts = self._parts(name, rows, self._checkpoint.affine)
        return None if parts is None else Affine(*parts)

    def _parts(self, name: str, rows: slice | None, read: Read[Parts]) -> Parts | None:
        """What ``read`` reads of each tensor, joined; None where it is none, or of other groups."""
        (first, end), begin = self._bounds(name, rows), 0
        pieces: list[Parts] = []
        for stored in self._joined[name]:
            size = self._stored[stored].shape[0]
            own = slice(max(first - begin, 0), min(end - begin, size))
            begin += size
            piece = read(stored, own) if own.start < own.stop else None
            if piece is not None:
                pieces.append(piece)
            elif own.start < own.stop:
                return None
        columns = {tuple(part.shape[1:] for part in piece) for piece in pieces}
        if len(columns) != 1:
            return None
        joined = (np.concatenate(each) for each in zip(*pieces, strict=True))
        return cast(Parts, tuple(joined))


def with_joined_delta(checkpoint: Checkpoint) -> Checkpoint:
    """A checkpoint with queries, keys and values of linear attention together.

    Raises:
        CheckpointError: a norm is there under both of its names; the checkpoint is closed then.
    """
    if checkpoint.config.get("model_type") != _MODEL_TYPE:
        return checkpoint
    try:
        return JoinedDelta(checkpoint)
    except CheckpointError:
        checkpoint.close()
        raise
