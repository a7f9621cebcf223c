"""Golden checkpoints of text models, as checkpoints that have parts for pictures beside these."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load_file, save_file

from edgerun_export.pipeline import ExportOptions, ExportResult, export
from tests.support.bundles import GOLDEN

FILES = ("model.onnx", "model.onnx.data")
Tensors = dict[str, NDArray]
Config = dict[str, Any]


@dataclass(frozen=True)
class Layout:
    """Names of tensors.

    Attributes:
        text: what stands for ``model.``.
        head: name of the head.
        others: tensors of the parts that are left out.
    """

    text: str
    head: str
    others: tuple[str, ...]

    def renamed(self, name: str) -> str:
        """What a tensor of the text model is called."""
        return self.head if name == HEAD else self.text + name.removeprefix("model.")


HEAD = "lm_head.weight"
BESIDE = Layout(
    "language_model.model.",
    "language_model.lm_head.weight",
    ("vision_tower.patch_conv.weight", "multi_modal_projector.linear_1.weight"),
)
INSIDE = Layout(
    "model.language_model.",
    HEAD,
    ("model.vision_tower.patch_conv.weight", "model.multi_modal_projector.linear_1.weight"),
)
NEXT = Layout(BESIDE.text, BESIDE.head, (*BESIDE.others, "image_newline"))
NEXT_INSIDE = Layout(INSIDE.text, HEAD, (*INSIDE.others, "model.image_newline"))
QWEN = Layout("model.", HEAD, ("visual.patch_embed.proj.weight", "visual.merger.mlp.0.bias"))
QWEN_INSIDE = Layout(INSIDE.text, HEAD, ("model.visual.blocks.0.norm1.weight",))
TOKENIZERS = Layout(
    INSIDE.text,
    HEAD,
    ("model.vision_tokenizer.quant_conv.bias", "model.audio_tokenizer.quantizer.codebook.embed"),
)
ADAPTER = Layout(
    INSIDE.text,
    HEAD,
    (
        "model.vision_tower.ln_pre.weight",
        "model.vision_adapter.fc1.weight",
        "model.vision_projection.weight",
    ),
)
ALONE_INSIDE = Layout(INSIDE.text, HEAD, ())
IDEFICS = Layout(
    "model.text_model.",
    HEAD,
    (
        "model.vision_model.post_layernorm.bias",
        "model.connector.modality_projection.proj.weight",
    ),
)


@dataclass(frozen=True)
class Case:
    """A golden text model in a checkpoint of another architecture.

    Attributes:
        architecture: its model_type.
        text: the golden checkpoint.
        kind: the model_type of ``text_config``.
        layouts: how tensors may be named.
        keys: of ``text_config``, beyond those of the golden checkpoint.
    """

    architecture: str
    text: str
    kind: str
    layouts: tuple[Layout, ...]
    keys: Mapping[str, Any] = field(default_factory=dict)


_MROPE = {"rope_theta": 10000.0, "mrope_section": [4, 2, 2], "type": "mrope"}
_INTERLEAVED = {**_MROPE, "mrope_interleaved": True, "rope_type": "default"}
# Which Qwen3-VL does not have, whatever its configuration says.
_WINDOWS = {"use_sliding_window": True, "sliding_window": 4, "max_window_layers": 0}
_WINDOWS |= {"layer_types": None}
CASES = {
    "gemma3": Case("gemma3", "gemma3_text", "gemma3_text", (BESIDE, INSIDE)),
    "mistral3": Case("mistral3", "mistral", "mistral", (BESIDE, INSIDE)),
    "ministral3": Case("mistral3", "ministral3", "ministral3", (BESIDE, INSIDE)),
    "mistral4": Case("mistral3", "mistral4", "mistral4", (BESIDE, INSIDE)),
    "llava": Case("llava", "llama", "llama", (BESIDE, INSIDE)),
    "llava-mistral": Case("llava", "mistral", "mistral", (BESIDE,)),
    "llava-qwen2": Case("llava", "qwen2", "qwen2", (BESIDE,)),
    "internvl": Case("internvl", "qwen3", "qwen3", (BESIDE, INSIDE)),
    "llava_next": Case("llava_next", "mistral", "mistral", (NEXT, NEXT_INSIDE)),
    "lfm2_vl": Case("lfm2_vl", "lfm2", "lfm2", (INSIDE,)),
    "lfm2-vl": Case("lfm2-vl", "lfm2", "lfm2", (INSIDE,)),
    "lfm3_vl": Case("lfm3_vl", "lfm3", "lfm3", (INSIDE,)),
    "idefics3": Case("idefics3", "llama-llama3", "llama", (IDEFICS,)),
    "smolvlm": Case("smolvlm", "llama", "llama", (IDEFICS,)),
    "apertus1p5": Case("apertus1p5", "apertus1p5_text", "apertus1p5_text", (TOKENIZERS,)),
    "exaone4_5": Case("exaone4_5", "exaone4", "exaone4_5_text", (QWEN_INSIDE,)),
    "muse_glimmer": Case("muse_glimmer", "muse_glimmer_text", "muse_glimmer_text", (ADAPTER,)),
    "qwen2_vl": Case(
        "qwen2_vl",
        "qwen2",
        "qwen2_vl_text",
        (QWEN, QWEN_INSIDE),
        {"rope_parameters": None, "rope_scaling": _MROPE},
    ),
    "qwen2_5_vl": Case(
        "qwen2_5_vl",
        "qwen2",
        "qwen2_5_vl_text",
        (QWEN, QWEN_INSIDE),
        {"rope_parameters": _MROPE},
    ),
    "qwen3_vl": Case(
        "qwen3_vl",
        "qwen3",
        "qwen3_vl_text",
        (QWEN_INSIDE,),
        {"rope_parameters": _INTERLEAVED, **_WINDOWS},
    ),
    "qwen3_vl_moe": Case(
        "qwen3_vl_moe",
        "qwen3_moe",
        "qwen3_vl_moe_text",
        (QWEN_INSIDE,),
        {"rope_parameters": _INTERLEAVED, **_WINDOWS},
    ),
    "qwen3_5": Case("qwen3_5", "qwen3_5_text", "qwen3_5_text", (QWEN_INSIDE,)),
    "qwen3_5_moe": Case("qwen3_5_moe", "qwen3_5_moe_text", "qwen3_5_moe_text", (QWEN_INSIDE,)),
}
PAIRS = [(name, layout) for name, case in CASES.items() for layout in case.layouts]


def text_config(case: Case) -> Config:
    """The configuration of the golden checkpoint, as ``text_config`` has it."""
    config = json.loads((GOLDEN / case.text / "config.json").read_text())
    return {**config, **case.keys, "model_type": case.kind}


def nested(case: Case) -> Config:
    """A configuration with ``text_config``."""
    return {
        "model_type": case.architecture,
        "text_config": text_config(case),
        "vision_config": {"hidden_size": 8, "vocab_size": 3},
    }


def wrap(
    folder: Path,
    case: Case,
    layout: Layout | None = None,
    alter: Callable[[Tensors], None] = lambda tensors: None,
    config: Callable[[Config], Any] = lambda config: None,
) -> Path:
    """Writes a checkpoint.

    Args:
        folder: to be made.
        case: what of.
        layout: how tensors are named; the first unless given.
        alter: changes the tensors, named so.
        config: changes the configuration, or returns another.
    """
    layout = layout or case.layouts[0]
    shutil.copytree(GOLDEN / case.text, folder, ignore=shutil.ignore_patterns("*.npz"))
    stored = load_file(folder / "model.safetensors")
    tensors = {layout.renamed(name): value for name, value in stored.items()}
    tensors |= {name: np.ones(3, np.float32) for name in layout.others}
    alter(tensors)
    save_file(
        {k: np.ascontiguousarray(v) for k, v in tensors.items()}, folder / "model.safetensors"
    )
    content = nested(case)
    content = config(content) or content
    (folder / "config.json").write_text(json.dumps(content))
    return folder


def exported_to(folder: Path, out: Path) -> ExportResult:
    """Exports a checkpoint as it is."""
    return export(folder, out, ExportOptions(weights="fp32"))


def same_bytes(result: ExportResult, plain: ExportResult) -> bool:
    """Whether two bundles have the same graph and weights."""
    return all(
        (result.folder / file).read_bytes() == (plain.folder / file).read_bytes() for file in FILES
    )
