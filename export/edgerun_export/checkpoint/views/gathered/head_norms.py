"""Norms of heads whose weights differ from head to head, as one row of all of them.

Command R+ has a matrix ``[heads, head_dim]``, as GGUF files of it and of StableLM 2 12B have;
StableLM itself has a vector of each head, ``q_layernorm.norms.N.weight``.
"""

from __future__ import annotations

import re
from collections import defaultdict

import numpy as np

from edgerun.errors import CheckpointError
from edgerun_export.checkpoint.base import F32, I8, Array, Checkpoint, TensorInfo
from edgerun_export.checkpoint.views.base import Replacing

_SWITCHES = ("use_qk_norm", "qk_layernorm")  # keys of configurations that say that there are such
_NORM = re.compile(
    r"(model\.layers\.\d+\.self_attn\.[qk]_(?:layer)?norm)(?:\.norms\.(0|[1-9]\d{0,5}))?\.weight"
)


class HeadNorms(Replacing):
    """A checkpoint with one vector for the norms of all heads of a layer's queries, or keys."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        """Looks at the names and shapes of a checkpoint's tensors.

        Raises:
            CheckpointError: a layer has norms of other heads than ``config.json`` says.
        """
        super().__init__(checkpoint)
        self._heads: dict[str, list[str]] = {}
        single: dict[str, dict[int, str]] = defaultdict(dict)
        for name, info in self._stored.items():
            match = _NORM.fullmatch(name)
            if match is None:
                continue
            if match[2] is not None:
                single[match[1]][int(match[2])] = name
            elif len(info.shape) == 2:
                self._check(match[1], info.shape[0])
                self._join(match[1], [name])
        for module, heads in single.items():
            missing = next((head for head in range(len(heads)) if head not in heads), None)
            if missing is not None:
                raise CheckpointError(
                    f"the checkpoint has norms of {len(heads)} heads at '{module}.norms' and none "
                    f"of head {missing}"
                )
            self._check(module, len(heads))
            self._join(module, [heads[head] for head in range(len(heads))])

    def read(self, name: str, rows: slice | None = None) -> Array:
        """Read rows as float32; see ``Checkpoint.read``."""
        if name not in self._own:
            return self._checkpoint.read(name, rows)
        first, end = self._bounds(name, rows)
        parts = [np.ravel(self._checkpoint.read(each)) for each in self._heads[name]]
        return np.concatenate(parts)[first:end]

    def integers(self, name: str, rows: slice | None = None) -> tuple[I8, F32] | None:
        """Read codes and scales, which none has by itself; see ``Checkpoint.integers``."""
        return None if name in self._own else self._checkpoint.integers(name, rows)

    def _check(self, module: str, heads: int) -> None:
        """Compares the number of norms with that of heads, unless none is said."""
        queries = self.config.get("num_attention_heads")
        is_of_keys = ".self_attn.k_" in module
        expected = (self.config.get("num_key_value_heads") if is_of_keys else None) or queries
        if isinstance(expected, int) and heads != expected:
            raise CheckpointError(
                f"the checkpoint has norms of {heads} heads at '{module}'; config.json asks for "
                f"{expected}"
            )

    def _join(self, module: str, stored: list[str]) -> None:
        name = f"{module}.weight"
        infos = [self._others.pop(each) for each in stored]
        size = sum(int(np.prod(info.shape)) for info in infos)
        self._own[name] = TensorInfo(name, (size,), infos[0].dtype)
        self._heads[name] = stored


def with_joined_norms(checkpoint: Checkpoint) -> Checkpoint:
    """A checkpoint with one vector of norms for all heads, whether it stores them so or not.

    Raises:
        CheckpointError: norms of some heads are missing; the checkpoint is closed then.
    """
    if not any(checkpoint.config.get(key) for key in _SWITCHES):
        return checkpoint
    try:
        return HeadNorms(checkpoint)
    except CheckpointError:
        checkpoint.close()
        raise
