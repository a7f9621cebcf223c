"""What ``text_config`` may leave out: sizes, where they are the defaults of transformers' class.

Version 4 wrote no key of a part's configuration that has its default (LLaVA 1.6 of Mistral 7B
states four sizes). Other keys have these defaults wherever they are read. ``test_defaults.py``
compares all with the classes of transformers 5.24.
"""

from __future__ import annotations

from edgerun_export.architectures.decoder.spec import Config

# Key heads where config.json has no such key, of classes that do not take as many as query heads.
_KEY_HEADS = {
    **dict.fromkeys(("ernie4_5", "glm", "glm4", "qwen3_next", "starcoder2"), 2),
    **dict.fromkeys(("ernie4_5_moe", "gemma2", "gemma3_text", "granite_swa", "lfm3", "mellum"), 4),
    **dict.fromkeys(("qwen3_5_text", "qwen3_moe", "smollm3", "vaultgemma"), 4),
    "bitnet": 5,
    **dict.fromkeys(("cwm", "exaone", "glm4_moe", "gpt_oss", "hy_v3", "lfm2", "lfm2_moe"), 8),
    **dict.fromkeys(("minimax_m2", "ministral", "ministral3", "mistral", "mixtral"), 8),
    **dict.fromkeys(("seed_oss", "solar_open"), 8),
    **dict.fromkeys(("gemma", "qwen2_moe"), 16),
    "helium": 20,
    **dict.fromkeys(("dots1", "exaone4", "exaone_moe", "qwen2", "qwen3", "stablelm"), 32),
}
_SIZES = (
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",  # None stands for as many as there are query heads
    "max_position_embeddings",
)
_OF_TEXTS = {
    "llama": (32000, 4096, 11008, 32, 32, None, 2048),
    "mistral": (32000, 4096, 14336, 32, 32, 8, 131072),
    "ministral3": (131072, 4096, 14336, 34, 32, 8, 262144),
    "apertus1p5_text": (266752, 4096, 14336, 32, 32, None, 65536),
    "exaone4": (102400, 4096, 16384, 32, 32, 32, 2048),
    "muse_glimmer_text": (202048, 6656, 19968, 52, 32, 2, 131072),
    "mistral4": (131072, 4096, 12288, 36, 32, 32, 1048576),
    "lfm2": (65536, 2560, 12288, 32, 32, 8, 128000),
    "gemma3_text": (262208, 2304, 9216, 26, 8, 4, 131072),
    "gemma3n_text": (262400, 2048, 16384, 35, 8, 2, 32768),
    "gemma4_text": (262144, 2304, 9216, 30, 8, 4, 131072),
    "gemma4_unified_text": (262144, 2304, 9216, 30, 8, 4, 262144),
    "qwen2": (151936, 4096, 22016, 32, 32, 32, 32768),
    "qwen3": (151936, 4096, 22016, 32, 32, 32, 32768),
    "qwen2_vl_text": (152064, 8192, 29568, 80, 64, 8, 32768),
    "qwen2_5_vl_text": (152064, 8192, 29568, 80, 64, 8, 32768),
    "qwen3_vl_text": (151936, 4096, 22016, 32, 32, 32, 128000),
    "qwen3_vl_moe_text": (151936, 2048, 5632, 24, 16, 16, 128000),
    "qwen3_5_text": (248320, 4096, 12288, 32, 16, 4, 32768),
    "qwen3_5_moe_text": (248320, 2048, None, 40, 16, 2, 32768),
}
_OTHERS = {
    "mistral4": {
        "moe_intermediate_size": 2048,
        "n_routed_experts": 128,
        "num_experts_per_tok": 4,
        "kv_lora_rank": 256,
        "q_lora_rank": 1024,
        "qk_nope_head_dim": 64,
        "qk_rope_head_dim": 64,
        "v_head_dim": 128,
    },
    "qwen3_vl_moe_text": {
        "moe_intermediate_size": 1408,
        "num_experts": 60,
        "num_experts_per_tok": 4,
    },
}
USUAL: dict[str, Config] = {
    kind: {
        **{key: size for key, size in zip(_SIZES, sizes, strict=True) if size is not None},
        **_OTHERS.get(kind, {}),
    }
    for kind, sizes in _OF_TEXTS.items()
}


def usual_key_heads(config: Config, heads: int) -> int:
    """How many key heads there are where ``config`` gives no number; null means ``heads``.

    So does a number of the class that ``heads`` is no multiple of, with which no model can be.
    """
    if "num_key_value_heads" in config:
        return heads
    usual = _KEY_HEADS.get(str(config.get("model_type")), heads)
    return heads if heads % usual else usual
