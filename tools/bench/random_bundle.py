"""Writes a bundle with random weights in the true shape of a known model.

    python -m tools.bench.random_bundle qwen3-30b-a3b OUT [--layers N] [--seed S] [--weights int4]

No checkpoint is written on the way, which of a large model would take more disk than there is: of
Qwen3-30B 61 GB for a bundle of 8. The exporter reads weights that are made as it asks for them,
pieces of one long random row. Projections are ternary from the beginning, as a BitNet's are, and
stay so in what format ever they are stored.
"""

from __future__ import annotations

import math
import sys
import tempfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgerun_export.architectures import describe
from edgerun_export.checkpoint.base import Source, TensorInfo
from edgerun_export.pipeline import ExportOptions, export_checkpoint
from tools.bench.random_model import asked, config_of, stored_shapes
from tools.golden.byte_tokenizer import BOS, EOS, write_tokenizer

_VALUES = 1 << 25  # of the random row, of each kind
_NOT_ZERO = 2 / 3  # of ternary values
# What layers add stays small beside the embedding, so that tokens differ to the last layer and
# routers send each elsewhere, as evenly as may be: for caches of experts there is nothing worse.
_ADDED, _ADDED_SHARE = ("o_proj", "down_proj"), 0.1
# Sizes before and of what heads have of tensors that are zeros elsewhere, where one narrow row is
# what all keys and values are made of (``edgerun_export/checkpoint/views/latent.py``).
_PARTS_OF_HEADS = {
    "k_proj": ((), ("qk_nope_head_dim",)),
    "k_rope_proj": (("qk_nope_head_dim",), ("qk_rope_head_dim",)),
    "v_proj": ((), ("v_head_dim",)),
}


class RandomCheckpoint:
    """A checkpoint (``edgerun_export.checkpoint.Checkpoint``) whose weights lie nowhere."""

    def __init__(self, name: str, config: Mapping[str, Any], seed: int = 0) -> None:
        """Takes the name of the model and its configuration, as transformers has it."""
        self.config = {**config, "bos_token_id": BOS, "eos_token_id": EOS}
        self.source = Source("random", name)
        self.notes = tuple[str, ...]()
        spec = describe(self.config)
        # Where one narrow row is what keys and values are made of, they are whole heads here.
        is_latent = "kv_lora_rank" in config
        self._shapes = spec.tensors() if is_latent else stored_shapes(spec)
        self._context = spec.context_length
        generator = np.random.Generator(np.random.SFC64(seed))
        self._normal = generator.standard_normal(_VALUES, np.float32)
        self._ternary = generator.integers(-1, 2, _VALUES, np.int8)

    def tensors(self) -> Mapping[str, TensorInfo]:
        """All tensors that the architecture has."""
        return {name: TensorInfo(name, shape, "F32") for name, shape in self._shapes.items()}

    def read(self, name: str, rows: slice | None = None) -> NDArray[np.float32]:
        """Norms of ones, and matrices that keep the size of what they multiply."""
        if len(self._shapes[name]) == 1:
            return np.ones(self._shapes[name], np.float32)[rows or slice(None)]
        values = self._piece(self._normal, name, rows)
        return values if "embed" in name else values * np.float32(values.shape[-1] ** -0.5)

    def integers(self, name: str, rows: slice | None = None) -> None:
        """Nothing is stored as integers that is not ternary."""

    def ternary(
        self, name: str, rows: slice | None = None
    ) -> tuple[NDArray[np.int8], NDArray[np.float32]] | None:
        """Projections, with one scale each."""
        if "_proj.weight" not in name and ".experts." not in name:
            return None
        values = self._piece(self._ternary, name, rows)
        if "kv_lora_rank" in self.config:
            values = values * self._is_stored(name, rows)[:, None]
        scale = (_NOT_ZERO * values.shape[1]) ** -0.5
        added = any(part in name for part in _ADDED)
        return values, np.array([scale * _ADDED_SHARE if added else scale], np.float32)

    def read_to_the_end(self) -> frozenset[str]:
        """All of them, as it were."""
        return frozenset(self._shapes)

    def tokenizer_files(self) -> Mapping[str, bytes]:
        """A token for each byte."""
        with tempfile.TemporaryDirectory() as folder:
            write_tokenizer(Path(folder), self._context)
            return {path.name: path.read_bytes() for path in Path(folder).iterdir()}

    def close(self) -> None:
        """Nothing is open."""

    def __enter__(self) -> RandomCheckpoint:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _is_stored(self, name: str, rows: slice | None) -> NDArray[np.int8]:
        """0 for rows of a latent head of which there is nothing, 1 for others."""
        before, own = _PARTS_OF_HEADS.get(name.split(".")[-2], ((), ()))
        every = np.arange(self._shapes[name][0])[rows or slice(None)]
        if not own:
            return np.ones(len(every), np.int8)
        plain, turned, value = (
            self.config[f"{each}_head_dim"] for each in ("qk_nope", "qk_rope", "v")
        )
        first, size = (sum(self.config[each] for each in names) for names in (before, own))
        place = every % max(plain + turned, value) - first
        return ((place >= 0) & (place < size)).astype(np.int8)

    def _piece(self, values: NDArray[Any], name: str, rows: slice | None) -> NDArray[Any]:
        """Rows of a matrix: a piece of the random row, from a place that its name says."""
        height, *rest = self._shapes[name]
        width = math.prod(rest)
        start, stop, _ = (rows or slice(None)).indices(height)
        count = (stop - start) * width
        place = (zlib.crc32(name.encode()) + start * width) % len(values)
        piece = values[place : place + count]
        if len(piece) < count:  # it goes on at the beginning
            piece = np.take(values, np.arange(place, place + count), mode="wrap")
        return piece.reshape(stop - start, *rest)


def main() -> None:
    """Writes the bundle named on the command line."""
    arguments = asked(__doc__, ("ternary", "int4", "int8"))
    checkpoint = RandomCheckpoint(arguments.preset, config_of(arguments), arguments.seed)
    options = ExportOptions(weights=arguments.weights, force=True)
    export_checkpoint(checkpoint, arguments.out, options, _show)


def _show(step: str, fraction: float) -> None:
    if sys.stderr.isatty():
        sys.stderr.write(f"\r{step} {fraction:.0%} ")


if __name__ == "__main__":
    main()
