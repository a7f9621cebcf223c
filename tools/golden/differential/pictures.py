"""Models with parts for pictures, of which the text model is compared."""

from __future__ import annotations

from functools import partial
from typing import Any

from tools.golden.differential import (
    deepseek_like,
    gemma,
    linear,
    llama_like,
    with_experts,
)
from tools.golden.differential.parts import Config, Draw, Family, head_dim_of, rope, without

_CLIP = {
    **{"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1},
    **{"num_attention_heads": 2, "image_size": 16, "patch_size": 8},
}
_QWEN = {"depth": 2, "hidden_size": 32, "intermediate_size": 48, "num_heads": 2}
_QWEN2 = {"depth": 2, "embed_dim": 32, "num_heads": 2}
_TEXTS: dict[str, Family] = {
    **llama_like.FAMILIES,
    **gemma.FAMILIES,
    **linear.FAMILIES,
    **with_experts.FAMILIES,
    "mistral4": deepseek_like.mistral4,
}
_TOKEN = {"image_token_index": 263}
_WINDOWS = ("use_sliding_window", "sliding_window", "max_window_layers", "layer_types")


def _pictured(text: Config, vision: Config, **more: Any) -> Config:
    """A text model and a small eye; both together say whether the head is the embedding."""
    return {
        "text_config": without(text, "tie_word_embeddings"),
        "vision_config": vision,
        "tie_word_embeddings": text["tie_word_embeddings"],
        **more,
    }


def _around(
    draw: Draw, texts: tuple[str, ...], vision: Config, more: Config | None = None
) -> Config:
    """Any of some text models, with an eye that has layers as CLIP's."""
    kind = draw.of(*texts)
    text = {**_TEXTS[kind](draw), "model_type": kind}
    return _pictured(text, {**_CLIP, **vision}, **(more or {}))


def _with_axes(draw: Draw, text: Config, **more: Any) -> Config:
    """Text whose rope has three axes, as pictures have time, height and width."""
    parts = linear.sections(head_dim_of(text))
    turned = rope(draw, ("default", "default", "yarn"), mrope_section=parts, **more)
    return {**text, "rope_parameters": turned}


def qwen2_vl(draw: Draw) -> Config:
    text = _with_axes(draw, llama_like.qwen2(draw))
    return _pictured(text, {**_QWEN2, "hidden_size": text["hidden_size"]})


def qwen2_5_vl(draw: Draw) -> Config:
    text = _with_axes(draw, llama_like.qwen2(draw))
    return _pictured(text, {**_QWEN, "out_hidden_size": text["hidden_size"]})


def _qwen3_vl(draw: Draw, text_model: Family) -> Config:
    plain = without(text_model(draw), *_WINDOWS, "norm_topk_prob")
    text = _with_axes(draw, plain, mrope_interleaved=True)
    vision = {**_QWEN, "deepstack_visual_indexes": [0], "num_position_embeddings": 16}
    return _pictured(text, {**vision, "out_hidden_size": text["hidden_size"]})


def _qwen3_5(draw: Draw, text_model: Family) -> Config:
    text = text_model(draw)
    vision = {**_QWEN, "num_position_embeddings": 16, "out_hidden_size": text["hidden_size"]}
    return _pictured(text, vision)


def smolvlm(draw: Draw) -> Config:
    text = {**llama_like.llama(draw), "model_type": "llama", "pad_token_id": 2}
    return _pictured(text, dict(_CLIP))


def apertus1p5(draw: Draw) -> Config:
    text = {**llama_like.apertus1p5_text(draw), "model_type": "apertus1p5_text"}
    offset = text["vocab_size"] - 4
    eye = {"codebook_size": 2, "embed_dim": 4, "latent_channels": 4, "base_channels": 32}
    eye |= {"channel_multiplier": [1, 1], "num_res_blocks": 1, "attn_resolutions": []}
    ear = {"codebook_size": 2, "codebook_dim": 8, "hidden_size": 8, "num_filters": 2}
    ear |= {"model_type": "wavtokenizer_encoder", "num_lstm_layers": 1}
    tokens = {"image_token_offset": offset, "audio_token_offset": offset + 2}
    return _pictured(text, eye, audio_config=ear, **tokens)


def exaone4_5(draw: Draw) -> Config:
    text = {**llama_like.exaone4(draw), "model_type": draw.of("exaone4", "exaone4_5_text")}
    return _pictured(text, {**_QWEN, "num_key_value_heads": 1, "out_hidden_size": 64})


def muse_glimmer(draw: Draw) -> Config:
    vision = {key: size for key, size in _CLIP.items() if key not in ("image_size", "patch_size")}
    text = {**gemma.muse_glimmer_text(draw), "model_type": "muse_glimmer_text"}
    return _pictured(text, vision, out_hidden_size=128, projector_hidden_size=32)


_LLAVA = partial(
    _around,
    texts=("llama", "mistral", "qwen2"),
    vision={"model_type": "clip_vision_model"},
    more=_TOKEN,
)
FAMILIES: dict[str, Family] = {
    "apertus1p5": apertus1p5,
    "exaone4_5": exaone4_5,
    "gemma3": partial(
        _around,
        texts=("gemma3_text",),
        vision={"model_type": "siglip_vision_model"},
        more=_TOKEN,
    ),
    "idefics3": smolvlm,
    "internvl": partial(
        _around,
        texts=("qwen2", "qwen3", "llama"),
        vision={"model_type": "internvl_vision"},
        more=_TOKEN,
    ),
    "lfm2_vl": partial(
        _around, texts=("lfm2",), vision={"model_type": "siglip2_vision_model", "num_patches": 16}
    ),
    "lfm3_vl": partial(_around, texts=("lfm3",), vision={"num_key_value_heads": 1}),
    "llava": _LLAVA,
    "llava_next": _LLAVA,
    "mistral3": partial(
        _around,
        texts=("mistral", "ministral3", "mistral4"),
        vision={"model_type": "pixtral", "head_dim": 16},
        more=_TOKEN,
    ),
    "muse_glimmer": muse_glimmer,
    "qwen2_5_vl": qwen2_5_vl,
    "qwen2_vl": qwen2_vl,
    "qwen3_5": partial(_qwen3_5, text_model=linear.qwen3_5_text),
    "qwen3_5_moe": partial(_qwen3_5, text_model=linear.qwen3_5_moe_text),
    "qwen3_vl": partial(_qwen3_vl, text_model=llama_like.qwen3),
    "qwen3_vl_moe": partial(_qwen3_vl, text_model=with_experts.qwen3_moe),
    "smolvlm": smolvlm,
}
