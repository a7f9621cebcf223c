"""Writes a checkpoint with other weights and the source's tokenizer; no torch."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save_file

from edgerun_export.architectures.decoder.storage import HEAD_WEIGHT
from edgerun_export.checkpoint.base import Checkpoint
from edgerun_export.source.weights import SourceWeights

F32 = NDArray[np.float32]


def save_checkpoint(
    checkpoint: Checkpoint, source: SourceWeights, changed: Mapping[str, F32], out: Path
) -> None:
    """Writes ``config.json``, ``model.safetensors`` (float32) and the tokenizer into a folder.

    Args:
        checkpoint: the source.
        source: its weights.
        changed: tensors that take the place of the source's, by their names; a head of its own
            among them unties it from the embedding.
        out: the folder; made if need be.
    """
    spec = source.spec
    if HEAD_WEIGHT in changed:
        spec = replace(spec, tied=False)
    tensors: dict[str, F32] = {}
    for name, shape in spec.tensors().items():
        if name in changed:
            tensors[name] = np.ascontiguousarray(changed[name], np.float32)
        else:
            tensors[name] = source.vector(name) if len(shape) == 1 else source.matrix(name)
        if tensors[name].shape != shape:
            raise ValueError(f"{name}: shape {tensors[name].shape}, not {shape}")
    out.mkdir(parents=True, exist_ok=True)
    save_file(tensors, out / "model.safetensors", metadata={"format": "pt"})
    config = {**checkpoint.config, "tie_word_embeddings": spec.tied}
    config.pop("quantization_config", None)  # of integers that the source had
    (out / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    for name, content in checkpoint.tokenizer_files().items():
        (out / name).write_bytes(content)
