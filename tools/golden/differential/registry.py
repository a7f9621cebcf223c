"""All families, and those of which no checkpoint is drawn."""

from __future__ import annotations

from tools.golden.differential import (
    deepseek_like,
    gemma,
    layer_norms,
    linear,
    llama_like,
    pictures,
    state_spaces,
    with_experts,
)
from tools.golden.differential.parts import Config, Draw, Family

FAMILIES: dict[str, Family] = {
    **llama_like.FAMILIES,
    **gemma.FAMILIES,
    **layer_norms.FAMILIES,
    **with_experts.FAMILIES,
    **deepseek_like.FAMILIES,
    **state_spaces.FAMILIES,
    **linear.FAMILIES,
    **pictures.FAMILIES,
}
# By what transformers computes those that it does not have.
SAME_AS = {"kimi_k2": "deepseek_v3"}
WITHOUT = {
    "bailing_moe": "is not in transformers",
    "bailing_moe_v2": "is not in transformers",
    "bitnet": "rounds activations, so that float32 noise may become a step",
    "bitnet_moe": "is not in transformers",
    "internlm2": "is not in transformers",
    "minicpm": "is not in transformers",
    "mistral4": "is in transformers within mistral3 alone",
    "gemma3n": "its text model is gemma3n_text",
    "gemma4": "its text model is gemma4_text",
    "muse_glimmer_text": "is in transformers within muse_glimmer alone",
    "gemma4_unified": "its text model is gemma4_unified_text",
}


def drawn_config(family: str, seed: int) -> Config:
    """The configuration of a seed, the same every time."""
    return FAMILIES[family](Draw(f"{family} {seed}"))
