"""The same random model as bundles and as GGUF files, made once and kept."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from edgerun.backends.cpu.families import weight_bytes as in_memory_bytes
from edgerun.formats.base import PackedWeight
from edgerun.formats.stack import ExpertStack
from edgerun.graph.ir import Graph, Node
from edgerun.graph.shapes import node_work
from edgerun.llm.loading import resolve
from edgerun.model.bundle import open_bundle
from tools.bench import random_model
from tools.golden import byte_tokenizer

# Small, with the block sizes of every format dividing its widths.
TINY: dict[str, Any] = {
    **random_model.PRESETS["bitnet-2b-4t"],
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 1024,
    "max_position_embeddings": 1024,
}
DEFAULT_MODEL = "default"
SMALL_MODEL = Path(__file__).parents[3] / "models" / "small" / "bundle"


@dataclass(frozen=True, slots=True)
class Preset:
    """A shape of model and what is compared at it.

    Attributes:
        config: as ``config.json``; or the folder of a bundle, None for the model that comes with
            edgerun.
        ours: variants of our bundle that edgerun runs.
        rivals: other runtimes, ``kind:variant``.
        decode_tokens: steps of a sample, more for a faster model.
        prefill_tokens: lengths of the prompts.
    """

    config: Mapping[str, Any] | Path | None
    ours: tuple[str, ...]
    rivals: tuple[str, ...]
    decode_tokens: int = 64
    prefill_tokens: tuple[int, ...] = (128, 512)


@dataclass(frozen=True, slots=True)
class BundleVariant:
    """How a bundle is exported.

    Attributes:
        folder: its name after the preset's.
        options: of ``ExportOptions``.
    """

    folder: str
    options: Mapping[str, Any] = field(default_factory=dict)


# Projections in 2 bits (ternary) with the head named, or everything in 4 bits but for the head.
BUNDLES = {
    "int8": BundleVariant("head-int8", {"weights": "ternary", "head_weights": "int8"}),
    "int4": BundleVariant("head-int4", {"weights": "ternary", "head_weights": "int4"}),
    "w4g32": BundleVariant("w4g32", {"weights": "int4", "group_size": 32, "head_weights": "int4"}),
    # Scales in half precision, as Q4_0 has them.
    "w4g32h": BundleVariant(
        "w4g32h",
        {"weights": "int4", "group_size": 32, "head_weights": "int4", "scales": "fp16"},
    ),
    "w4g128": BundleVariant(
        "w4g128", {"weights": "int4", "group_size": 128, "head_weights": "int4"}
    ),
    "as-shipped": BundleVariant(""),
}
_GGUF_RIVALS = ("llamacpp:tq2_0", "llamacpp:tq1_0", "llamacpp:q4_0")
_TWO_BITS = (
    *("onnxruntime:int8", "onnxruntime:int4", "openvino:int8", "openvino:int4"),
    *("genai:int8", "onnxruntime:w4g32", "openvino:w4g128"),
)


def _shipped(folder: Path | None) -> Preset:
    """What is compared of a bundle that is there already."""
    return Preset(
        folder,
        ("as-shipped",),
        (*_GGUF_RIVALS, *(f"{kind}:as-shipped" for kind in ("onnxruntime", "openvino", "genai"))),
        decode_tokens=256,
        prefill_tokens=(128, 384),  # its context ends at 512, the prompts' of some rivals before
    )


PRESETS: dict[str, Preset] = {
    "bitnet-2b-4t": Preset(
        random_model.PRESETS["bitnet-2b-4t"], ("int8", "int4"), (*_GGUF_RIVALS, *_TWO_BITS)
    ),
    "llama-3.2-1b": Preset(
        random_model.PRESETS["llama-3.2-1b"],
        ("w4g32", "w4g128"),
        (
            "llamacpp:q4_0",
            *(f"{kind}:w4g{size}" for kind in ("onnxruntime", "openvino") for size in (32, 128)),
            "genai:w4g32",
        ),
    ),
    "phi-2": Preset(random_model.PRESETS["phi-2"], ("w4g32",), ("llamacpp:q4_0",)),
    "granite-4-h-1b": Preset(
        random_model.PRESETS["granite-4-h-1b"],
        ("w4g32", "w4g32h"),
        ("llamacpp:q4_0", "genai:w4g32"),
    ),
    "qwen3.5-0.8b": Preset(
        random_model.PRESETS["qwen3.5-0.8b"], ("w4g32", "w4g32h"), ("llamacpp:q4_0", "genai:w4g32")
    ),
    "olmoe-1b-7b": Preset(
        random_model.PRESETS["olmoe-1b-7b"],
        ("w4g32", "w4g32h"),
        ("llamacpp:q4_0", "onnxruntime:w4g32"),
    ),
    "qwen3-30b-a3b-8": Preset(
        {**random_model.PRESETS["qwen3-30b-a3b"], "num_hidden_layers": 8},
        ("w4g32", "w4g32h"),
        ("llamacpp:q4_0", "onnxruntime:w4g32"),
    ),
    DEFAULT_MODEL: _shipped(None),
    "small": _shipped(SMALL_MODEL),
    "tiny": Preset(TINY, ("int8", "int4"), ("llamacpp:tq2_0", *_TWO_BITS)),
}


def config(preset: str) -> dict[str, Any]:
    """Returns the ``config.json`` of a preset."""
    chosen = PRESETS[preset].config
    if not isinstance(chosen, Mapping):
        values: dict[str, Any] = json.loads((resolve(chosen) / "config.json").read_text())
        return values
    return {**chosen, "bos_token_id": byte_tokenizer.BOS, "eos_token_id": byte_tokenizer.EOS}


def bundle(preset: str, variant: str, folder: Path) -> Path:
    """Returns the bundle of a variant."""
    shape = PRESETS[preset].config
    if not isinstance(shape, Mapping):
        return resolve(shape)
    from edgerun_export.pipeline import ExportOptions, export

    chosen = BUNDLES[variant]
    out = folder / f"{preset}-{chosen.folder}"
    if not (out / "manifest.json").exists():
        checkpoint = folder / f"{preset}-checkpoint"
        if not (checkpoint / "complete").exists():
            random_model.write(config(preset), checkpoint)
            (checkpoint / "complete").touch()
        export(checkpoint, out, ExportOptions(**chosen.options, force=True))
    return out


def gguf_file(preset: str, body: str, folder: Path) -> Path:
    """Returns the GGUF file with projections stored in the given type."""
    out = folder / f"{preset}-{body}.gguf"
    if not out.exists():
        from tools.bench.peers.gguf_files import random_file as writer

        writer.write(config(preset), out, body)
    return out


@cache
def step_bytes(kind: str, path: Path) -> int:
    """Bytes of weights that a decode step of a runtime reads: of experts those of one token.

    A tied embedding is the head too. For edgerun it is what lies in memory: one scale a row of a
    native ternary matrix, where the bundle repeats it for every block, and scales in half precision
    where that holds them.
    """
    if not path.is_dir():
        from tools.bench.peers.gguf_files.random_file import token_bytes

        return token_bytes(path)
    graph = open_bundle(path).graph
    total = 0
    for node in graph.nodes:
        packed = [isinstance(graph.constants.get(name), PackedWeight) for name in node.inputs]
        if node.op == "experts" or (node.op == "linear" and any(packed)):
            nbytes = node_work(graph, node, graph.shapes).read_nbytes(1)
            total += round(nbytes - (unread_bytes(graph, node, 1) if kind == "edgerun" else 0))
    return total


def unread_bytes(graph: Graph, node: Node, rows: int) -> float:
    """Of the bytes of a node's weights in the file, those that edgerun has no need to read."""
    work, activations = node_work(graph, node, graph.shapes), str(node.attrs.get("activations"))
    constants = [graph.constants.get(name) for name in node.inputs]
    unread = sum(
        constant.nbytes - in_memory_bytes(constant, activations, trits=False)
        for constant in constants
        if isinstance(constant, PackedWeight | ExpertStack)
    )
    return unread * work.active_experts(rows) / work.experts if work.experts else unread


def step_macs(preset: str, folder: Path) -> dict[str, int]:
    """Multiply-adds of the linear layers for a token row, and for one row of logits."""
    from edgerun.plan.workload import workload

    work = workload(open_bundle(bundle(preset, PRESETS[preset].ours[0], folder)).graph)
    return {"row_macs": work.row_macs, "logit_macs": work.logit_macs}


def weight_bytes(path: Path) -> int:
    """Bytes of the weights on disk."""
    return (path / "model.onnx.data" if path.is_dir() else path).stat().st_size
