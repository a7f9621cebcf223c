"""EXAONE 3.0 and 3.5, EXAONE Deep 2.4B to 32B: Llama under other names (LG AI Research 2024)."""

from __future__ import annotations

from dataclasses import replace

from edgerun_export.architectures import llama
from edgerun_export.architectures.decoder.rope import rope
from edgerun_export.architectures.decoder.spec import Config, DecoderSpec
from edgerun_export.architectures.decoder.storage import Storage, stored_modules

# By what Llama calls them, the keys of config.json and what they are where they are left out.
_KEYS = {
    "num_hidden_layers": ("num_layers", 32),
    "rms_norm_eps": ("layer_norm_epsilon", 1e-5),
    "hidden_act": ("activation_function", "silu"),
}
_MODULES = {
    "self_attn.q_proj": "attn.attention.q_proj",
    "self_attn.k_proj": "attn.attention.k_proj",
    "self_attn.v_proj": "attn.attention.v_proj",
    "self_attn.o_proj": "attn.attention.out_proj",
    "mlp.gate_proj": "mlp.c_fc_0",
    "mlp.up_proj": "mlp.c_fc_1",
    "mlp.down_proj": "mlp.c_proj",
    "input_layernorm": "ln_1",
    "post_attention_layernorm": "ln_2",
}


def describe(config: Config) -> DecoderSpec:
    """Describes a checkpoint of model_type ``exaone``.

    Raises:
        CheckpointError: a key of config.json is missing or out of range.
        UnsupportedError: it asks for a variant without an implementation.
    """
    said = {
        key: next((config[name] for name in (key, old) if config.get(name) is not None), usual)
        for key, (old, usual) in _KEYS.items()
    }
    spec = llama.describe({"max_position_embeddings": 4096, **config, **said})
    names = {
        spec.embedding_weight: "model.wte.weight",
        spec.final_norm_weight: "model.ln_f.weight",
        **stored_modules(spec.num_layers, _MODULES, "model.h"),
    }
    return replace(
        spec,
        architecture="exaone",
        ropes=(rope(config, spec.head_dim, default_theta=500000.0),),
        storage=Storage(names=names, prefix="transformer."),
    )


ARCHITECTURE = describe
