"""Compares text models of checkpoints with parts for pictures with transformers' own classes.

    python -m tools.golden.multimodal write OUT [NAME ...]      where torch and transformers are
    python -m tools.golden.multimodal compare OUT [NAME ...]    where edgerun is

The first writes tiny random checkpoints, as transformers saves them and with the logits that its
multimodal class computes without a picture; the second exports them, also with tensors named as
transformers computes with them, and prints the greatest difference in units of the logits' range.
Nothing of it is kept: ``tests/export/multimodal`` compares with golden text models.
"""

from __future__ import annotations

import argparse
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from tools.golden.base import LATENT
from tools.golden.byte_tokenizer import BOS, write_tokenizer
from tools.golden.checkpoints import BASE

_TEXT = {key: value for key, value in BASE.items() if not key.endswith(("_id", "_embeddings"))}
_TEXT |= {"max_position_embeddings": 128}
_CLIP = {
    **{"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1},
    **{"num_attention_heads": 2, "image_size": 16, "patch_size": 8},
}
_QWEN = {
    **{"depth": 2, "hidden_size": 32, "intermediate_size": 48, "num_heads": 2},
    "out_hidden_size": 64,
}
_QWEN3 = {**_QWEN, "deepstack_visual_indexes": [0], "num_position_embeddings": 16}
_MROPE = {"type": "mrope", "mrope_section": [2, 3, 3]}
_YARN = {"type": "yarn", "mrope_section": [2, 3, 3], "factor": 4.0}
_INTERLEAVED = {"rope_type": "default", "mrope_interleaved": True, "mrope_section": [6, 5, 5]}
_LLAMA4 = {
    **{"rope_type": "yarn", "rope_theta": 10000.0, "factor": 2.0, "llama_4_scaling_beta": 0.1},
    "original_max_position_embeddings": 64,
}
_MISTRAL4 = {
    **LATENT,
    **{"n_routed_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 40},
    "rope_parameters": _LLAMA4,
}
_WINDOWS = {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 1}
_SIGLIP, _PIXTRAL = "siglip_vision_model", {"model_type": "pixtral", "head_dim": 16}
# How tensors are named that transformers computes with, by how they are saved.
_LLAVA = {
    "language_model.model.": "model.language_model.",
    "language_model.lm_head.": "lm_head.",
    "vision_tower.": "model.vision_tower.",
    "multi_modal_projector.": "model.multi_modal_projector.",
    "image_newline": "model.image_newline",
}
_QWEN2_NAMES = {"visual.": "model.visual.", "model.": "model.language_model."}


@dataclass(frozen=True, slots=True)
class Pictured:
    """One tiny checkpoint.

    Attributes:
        family: prefix of the classes in transformers.
        text: keys of ``text_config``.
        vision: keys of ``vision_config``.
        more: keys beside these.
        names: how names of tensors change that transformers computes with.
    """

    family: str
    text: dict[str, Any]
    vision: dict[str, Any]
    more: dict[str, Any] = field(default_factory=dict)
    names: dict[str, str] = field(default_factory=dict)


def _llava(family: str, model_type: str, vision: dict[str, Any], **text: Any) -> Pictured:
    text = {"model_type": model_type, **text}
    more = {"image_token_index": 263}
    return Pictured(family, text, {**_CLIP, **vision}, more, names=_LLAVA)


_GEMMA = {"head_dim": 16, "query_pre_attn_scalar": 20, "sliding_window": 8}
_GEMMA |= {"sliding_window_pattern": 2, "rope_scaling": {"rope_type": "linear", "factor": 8.0}}
_LFM2 = {"block_multiple_of": 16, "layer_types": ["conv", "full_attention", "conv"]}
_LINEAR = {
    **{"head_dim": 32, "layer_types": ["linear_attention", "full_attention"]},
    **{"linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 16},
    **{"linear_value_head_dim": 24, "rope_scaling": {**_INTERLEAVED, "mrope_section": [2, 1, 1]}},
}
_EXPERTS = {"num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 40}
_TOKENS = {"image_token_offset": 260, "audio_token_offset": 262}
_EAR = {"model_type": "wavtokenizer_encoder", "num_lstm_layers": 1, "num_filters": 2}
_EAR |= {"codebook_size": 2, "codebook_dim": 8, "hidden_size": 8}
CHECKPOINTS = {
    "apertus1p5": Pictured(
        "Apertus1p5",
        {"output_vocab_size": 260},
        {"codebook_size": 2, "embed_dim": 4, "latent_channels": 4, "base_channels": 32}
        | {"channel_multiplier": [1, 1], "num_res_blocks": 1, "attn_resolutions": []},
        {"audio_config": _EAR, **_TOKENS},
    ),
    "exaone4_5": Pictured(
        "Exaone4_5_",
        {"model_type": "exaone4_5_text", "sliding_window": 8, "sliding_window_pattern": 2},
        {**_QWEN, "num_key_value_heads": 1},
    ),
    "muse_glimmer": Pictured(
        "MuseGlimmer",
        {"head_dim": 32, "sliding_window": 8},
        {key: size for key, size in _CLIP.items() if not key.endswith("_size")}
        | {"hidden_size": 32, "intermediate_size": 48},
        {"out_hidden_size": 128, "projector_hidden_size": 32},
    ),
    "gemma3": _llava("Gemma3", "gemma3_text", {"model_type": _SIGLIP}, **_GEMMA),
    "mistral3": _llava("Mistral3", "mistral", _PIXTRAL, head_dim=32, sliding_window=None),
    "mistral3-ministral3": _llava("Mistral3", "ministral3", _PIXTRAL, rope_parameters=_LLAMA4),
    "mistral3-mistral4": _llava("Mistral3", "mistral4", _PIXTRAL, **_MISTRAL4),
    "llava": _llava("Llava", "llama", {"model_type": "clip_vision_model"}),
    "llava-mistral": _llava("Llava", "mistral", _PIXTRAL, sliding_window=8),
    "llava-qwen2": _llava("Llava", "qwen2", {"model_type": _SIGLIP}),
    "internvl": _llava("InternVL", "qwen2", {"model_type": "internvl_vision"}),
    "internvl-qwen3": _llava("InternVL", "qwen3", {"model_type": "internvl_vision"}),
    "llava_next": _llava("LlavaNext", "mistral", {"model_type": "clip_vision_model"}),
    "lfm2_vl": Pictured(
        "Lfm2Vl",
        {"model_type": "lfm2", **_LFM2, "num_hidden_layers": 3},
        {**_CLIP, "model_type": "siglip2_vision_model", "num_patches": 16},
    ),
    "lfm3_vl": Pictured(
        "Lfm3Vl",
        {"model_type": "lfm3", "layer_types": ["conv", "sliding_attention", "full_attention"]}
        | {"num_hidden_layers": 3, "sliding_window": 8, "conv_L_cache": 4, "head_dim": 32}
        | {"pad_token_id": 2},
        {**_CLIP, "num_key_value_heads": 1},
    ),
    "smolvlm": Pictured("SmolVLM", {"model_type": "llama", "pad_token_id": 2}, _CLIP),
    "idefics3": Pictured("Idefics3", {"model_type": "llama", "pad_token_id": 2}, _CLIP),
    "qwen2_vl": Pictured(
        "Qwen2VL",
        {"rope_scaling": _MROPE, **_WINDOWS},
        {"depth": 2, "embed_dim": 32, "num_heads": 2, "hidden_size": 64},
        names=_QWEN2_NAMES,
    ),
    "qwen2_5_vl": Pictured(
        "Qwen2_5_VL", {"rope_scaling": _MROPE, **_WINDOWS}, _QWEN, names=_QWEN2_NAMES
    ),
    "qwen2_5_vl-yarn": Pictured(
        "Qwen2_5_VL",
        {"rope_scaling": {**_YARN, "original_max_position_embeddings": 32}},
        _QWEN,
        {"tie_word_embeddings": True},
        _QWEN2_NAMES,
    ),
    "qwen3_vl": Pictured("Qwen3VL", {"head_dim": 32, "rope_scaling": _INTERLEAVED}, _QWEN3),
    "qwen3_vl_moe": Pictured(
        "Qwen3VLMoe",
        {"head_dim": 32, "rope_scaling": _INTERLEAVED, **_EXPERTS, "mlp_only_layers": [0]},
        _QWEN3,
    ),
    "qwen3_5": Pictured("Qwen3_5", _LINEAR, {**_QWEN, "num_position_embeddings": 16}),
    "qwen3_5_moe": Pictured(
        "Qwen3_5Moe",
        {**_LINEAR, **_EXPERTS, "shared_expert_intermediate_size": 48},
        {**_QWEN, "num_position_embeddings": 16},
    ),
}
# Whose norms are stored less one.
_CENTRED = ("Gemma3", "MuseGlimmer", "Qwen3_5", "Qwen3_5Moe")


def main() -> None:
    """Does what the command line says."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("step", choices=["write", "compare"])
    parser.add_argument("out", type=Path)
    parser.add_argument("names", nargs="*", default=list(CHECKPOINTS), metavar="NAME")
    arguments = parser.parse_args()
    for name in arguments.names:
        step = write if arguments.step == "write" else compare
        print(name, step(CHECKPOINTS[name], arguments.out / name))


def write(pictured: Pictured, folder: Path) -> str:
    """Writes one checkpoint with its tokenizer and logits."""
    import torch
    import transformers

    from tools.golden.make import randomise

    torch.manual_seed(3)
    keys = {"text_config": {**_TEXT, **pictured.text}, "vision_config": pictured.vision}
    config = getattr(transformers, f"{pictured.family}Config")(**keys, **pictured.more)
    config._attn_implementation = "eager"
    model_class = getattr(transformers, f"{pictured.family}ForConditionalGeneration")
    model = model_class(config).float().eval()
    randomise(model, 1.0 if pictured.family in _CENTRED else 0.0)
    model.tie_weights()
    ids = torch.randint(0, 256, (1, 32), generator=torch.Generator().manual_seed(7))
    ids[0, 0] = BOS
    with torch.no_grad():
        logits = model(ids).logits[0]
    folder.mkdir(parents=True, exist_ok=True)
    model.save_pretrained(folder)
    np.savez(folder / "golden.npz", ids=ids[0].numpy(), logits=logits.numpy())
    write_tokenizer(folder, _TEXT["max_position_embeddings"])
    return f"{len(model.state_dict())} tensors"


def compare(pictured: Pictured, folder: Path) -> str:
    """Compares the bundle of a checkpoint, and that of the same with other names."""
    from safetensors.numpy import load_file, save_file

    saved = _difference(folder)
    if not pictured.names:
        return f"{saved:.1e}"
    with TemporaryDirectory() as room:
        renamed = shutil.copytree(folder, Path(room) / "checkpoint") / "model.safetensors"
        tensors = load_file(renamed)
        save_file({_renamed(name, pictured.names): tensors[name] for name in tensors}, renamed)
        return f"{saved:.1e} {_difference(renamed.parent):.1e}"


def _renamed(name: str, names: dict[str, str]) -> str:
    """The first prefix that fits is replaced."""
    old = next((prefix for prefix in names if name.startswith(prefix)), "")
    return names.get(old, "") + name.removeprefix(old)


def _difference(folder: Path) -> float:
    from edgerun_export.checkpoint import open_checkpoint
    from edgerun_export.pipeline import ExportOptions, export
    from edgerun_export.source.model import interpret
    from edgerun_export.verify.compare import relative_error, run_onnx

    with open_checkpoint(str(folder)) as checkpoint, np.load(folder / "golden.npz") as golden:
        spec = interpret(checkpoint)[0].spec
        ids, logits = golden["ids"].astype(np.int64), golden["logits"]
    with TemporaryDirectory() as room:
        bundle = export(folder, Path(room) / "bundle", ExportOptions(weights="fp32")).folder
        return relative_error(run_onnx(bundle, spec, ids, decode_steps=0), logits)


if __name__ == "__main__":
    main()
