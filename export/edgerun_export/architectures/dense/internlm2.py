"""InternLM2 and 2.5, 1.8B to 20B: Llama under other names, with joined projections (2024).

As InternLM's ``modeling_internlm2.py`` has them.
"""

from __future__ import annotations

from dataclasses import replace

from edgerun_export.architectures import llama
from edgerun_export.architectures.decoder.fields import flag
from edgerun_export.architectures.decoder.rope import rope
from edgerun_export.architectures.decoder.spec import Config, DecoderSpec
from edgerun_export.architectures.decoder.storage import Storage, picked_in_turns, stored_modules

_MODULES = {
    "self_attn.o_proj": "attention.wo",
    "mlp.gate_proj": "feed_forward.w1",
    "mlp.up_proj": "feed_forward.w3",
    "mlp.down_proj": "feed_forward.w2",
    "input_layernorm": "attention_norm",
    "post_attention_layernorm": "ffn_norm",
}


def describe(config: Config) -> DecoderSpec:
    """Describes a checkpoint of model_type ``internlm2``.

    Raises:
        CheckpointError: a key of config.json is missing or out of range.
        UnsupportedError: it asks for a variant without an implementation.
    """
    spec = llama.describe(config)
    biased = ("q_proj", "k_proj", "v_proj", "o_proj") if flag(config, "bias", True) else ()
    shared = spec.num_heads // spec.num_kv_heads
    parts = [("q_proj", shared * spec.head_dim), ("k_proj", spec.head_dim)]
    parts.append(("v_proj", spec.head_dim))
    names = {spec.embedding_weight: "model.tok_embeddings.weight"}
    return replace(
        spec,
        architecture="internlm2",
        ropes=(rope(config, spec.head_dim),),
        biases=frozenset(biased),
        storage=Storage(
            names={**names, **stored_modules(spec.num_layers, _MODULES)},
            picked=picked_in_turns("attention.wqkv", spec.num_kv_heads, parts),
            head="output.weight",
        ),
    )


ARCHITECTURE = describe
