"""GLM 4.5 Air, GLM 4.5 to 4.7: heads of which a half is turned, experts as DeepSeek V3 has them."""

from __future__ import annotations

from dataclasses import replace

from edgerun_export.architectures import llama
from edgerun_export.architectures.decoder.fields import flag, natural, number
from edgerun_export.architectures.decoder.rope import partial, rope_of_part
from edgerun_export.architectures.decoder.spec import Config, DecoderSpec
from edgerun_export.architectures.decoder.storage import Storage
from edgerun_export.architectures.deepseek.deepseek_v3 import with_experts

_ROPE = ("rope_parameters", "rope_scaling", "partial_rotary_factor")
# Glm4MoeConfig's, where what is reused has others or none.
_USUAL = {"n_shared_experts": 1, "routed_scaling_factor": 1.0}


def describe(config: Config) -> DecoderSpec:
    """Describes a checkpoint of model_type ``glm4_moe``.

    Raises:
        CheckpointError: a key of config.json is missing or out of range.
        UnsupportedError: it asks for a variant without an implementation.
    """
    spec = llama.describe({**config, **dict.fromkeys(_ROPE)})
    turning, head_rows = partial(rope_of_part(config, spec.head_dim, 0.5), spec.head_dim)
    is_normed = flag(config, "use_qk_norm")
    has_biases = flag(config, "attention_bias")
    spec = replace(
        spec,
        norm_eps=number(config, "rms_norm_eps", 1e-5),
        ropes=(turning,),
        biases=frozenset(("q_proj", "k_proj", "v_proj") if has_biases else ()),
        q_norm="self_attn.q_norm" if is_normed else None,
        k_norm="self_attn.k_norm" if is_normed else None,
        storage=Storage(head_rows=head_rows),
    )
    first = natural(config, "first_k_dense_replace", 1, limit=spec.num_layers)
    said = {key: value for key, value in config.items() if value is not None}
    return with_experts(spec, {**_USUAL, **said}, [n >= first for n in range(spec.num_layers)])


ARCHITECTURE = describe
