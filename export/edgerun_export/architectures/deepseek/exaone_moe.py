"""K-EXAONE: EXAONE 4.0's attention, norms before its parts, and experts as DeepSeek V3 has them."""

from __future__ import annotations

from dataclasses import replace

from edgerun.errors import CheckpointError
from edgerun_export.architectures.decoder.fields import names, natural
from edgerun_export.architectures.decoder.spec import Config, DecoderSpec
from edgerun_export.architectures.decoder.storage import MTP_LEFT_OUT, Storage
from edgerun_export.architectures.deepseek.deepseek_v3 import with_experts
from edgerun_export.architectures.dense import exaone4

# By what DeepSeek V3 calls them, the keys of config.json.
_KEYS = {"n_routed_experts": "num_experts", "n_shared_experts": "num_shared_experts"}
_USUAL = {"num_shared_experts": 1, "routed_scaling_factor": 2.5}
_BIAS = "mlp.gate.e_score_correction_bias", "mlp.e_score_correction_bias"


def describe(config: Config) -> DecoderSpec:
    """Describes a checkpoint of model_type ``exaone_moe``.

    Raises:
        CheckpointError: a key of config.json is missing or out of range.
        UnsupportedError: it asks for a variant without an implementation.
    """
    said = _USUAL | {key: value for key, value in config.items() if value is not None}
    spec = replace(
        exaone4.describe(config),
        input_norm="input_layernorm",
        attention_out_norm=None,
        feed_forward_norm="post_attention_layernorm",
        feed_forward_out_norm=None,
    )
    are_sparse = _are_sparse(config, spec.num_layers)
    own, stored = _BIAS
    layers = [f"model.layers.{layer}." for layer, sparse in enumerate(are_sparse) if sparse]
    # Layers that predict several tokens are none of the model's, and have names of their own.
    keys = {own: said.get(key) for own, key in _KEYS.items()} | {"num_nextn_predict_layers": 0}
    return replace(
        with_experts(spec, {**said, **keys}, are_sparse),
        storage=Storage(
            names={f"{layer}{own}": f"{layer}{stored}" for layer in layers},
            unused=("mtp.",),
            said_of_unused={"mtp.": MTP_LEFT_OUT},
        ),
    )


def _are_sparse(config: Config, count: int) -> list[bool]:
    """Of each layer whether it has experts, as transformers says it, or released models before."""
    types, flags = names(config, "mlp_layer_types"), config.get("is_moe_layer")
    if types:
        flags = [{"dense": False, "sparse": True}.get(kind) for kind in types]
    if flags is None:
        first = natural(config, "first_k_dense_replace", 1, limit=count)
        return [layer >= first for layer in range(count)]
    if (
        not isinstance(flags, list)
        or len(flags) != count
        or any(flag not in (True, False) for flag in flags)
    ):
        raise CheckpointError(
            f"config.json: mlp_layer_types must be {count} times 'dense' or 'sparse', and "
            f"is_moe_layer as many truth values, not {str(types or flags)[:60]}"
        )
    return [bool(flag) for flag in flags]


ARCHITECTURE = describe
