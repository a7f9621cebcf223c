"""The same random model as a bundle and as a GGUF file, made once and kept."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import byte_tokenizer
import make_random_model

from edgerun.formats.base import PackedWeight
from edgerun.model.bundle import open_bundle

# Small, with the block sizes of every format dividing its widths.
TINY: dict[str, Any] = {
    **make_random_model.PRESETS["bitnet-2b-4t"],
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 1024,
    "max_position_embeddings": 1024,
}
PRESETS = ("bitnet-2b-4t", "tiny")


def config(preset: str) -> dict[str, Any]:
    """Returns the ``config.json`` of a preset."""
    base = TINY if preset == "tiny" else make_random_model.PRESETS[preset]
    return {**base, "bos_token_id": byte_tokenizer.BOS, "eos_token_id": byte_tokenizer.EOS}


def bundle(preset: str, head: str, folder: Path) -> Path:
    """Returns the bundle with ternary projections and the given head."""
    from edgerun_export.pipeline import ExportOptions, export

    out = folder / f"{preset}-head-{head}"
    if not (out / "manifest.json").exists():
        checkpoint = folder / f"{preset}-checkpoint"
        if not (checkpoint / "complete").exists():
            make_random_model.write(config(preset), checkpoint)
            (checkpoint / "complete").touch()
        export(checkpoint, out, ExportOptions(weights="ternary", head_weights=head, force=True))
    return out


def gguf_file(preset: str, body: str, folder: Path) -> Path:
    """Returns the GGUF file with projections stored in the given type."""
    out = folder / f"{preset}-{body}.gguf"
    if not out.exists():
        from peers import gguf_file as writer

        writer.write(config(preset), out, body)
    return out


def step_bytes(kind: str, path: Path) -> int:
    """Bytes of weights that a decode step of a runtime reads.

    A GGUF file's tied embedding is its head, so a step reads the whole file. edgerun keeps one
    scale a row of a native ternary matrix, where the bundle repeats it for every block.
    """
    if not path.is_dir():
        return weight_bytes(path)
    graph = open_bundle(path).graph
    total = 0
    for node in graph.nodes:
        weight = graph.constants.get(node.inputs[1]) if node.op == "linear" else None
        if isinstance(weight, PackedWeight):
            by_row = kind == "edgerun" and node.attrs["activations"] == "int8_row"
            total += weight.codes.nbytes + (4 * weight.shape[0] if by_row else weight.scales.nbytes)
    return total


def weight_bytes(path: Path) -> int:
    """Bytes of the weights on disk."""
    return (path / "model.onnx.data" if path.is_dir() else path).stat().st_size
