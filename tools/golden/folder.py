"""The folder of a golden checkpoint whose logits a definition in NumPy computed."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save_file

from tools.golden.byte_tokenizer import write_json, write_tokenizer


def write_folder(
    folder: Path,
    config: Mapping[str, Any],
    tensors: Mapping[str, NDArray[Any]],
    ids: NDArray[np.int64],
    logits: NDArray[np.float64],
    inv_freq: NDArray[np.float64],
    **more: NDArray[np.int64],
) -> None:
    """Writes configuration, weights, tokenizer, and what was computed of some ids.

    Args:
        folder: made where there is none.
        config: keys of config.json.
        tensors: the weights, by name.
        ids: token ids ``[tokens]``.
        logits: after each of them, ``[tokens, vocab]``.
        inv_freq: radians a position, ``[head_dim / 2]``.
        more: other arrays of ``golden.npz``.
    """
    folder.mkdir(parents=True, exist_ok=True)
    save_file(dict(tensors), folder / "model.safetensors")
    np.savez(
        folder / "golden.npz",
        ids=ids,
        logits=logits.astype(np.float32),
        inv_freq=inv_freq.astype(np.float32),
        **more,
    )
    write_json(folder / "config.json", dict(config))
    write_tokenizer(folder, config["max_position_embeddings"])
