"""HyperCLOVA X: Granite 3 with norms of what layers add; logits are multiplied, not divided.

The residual stream is kept divided by its factor, and so are the epsilons of all norms. What those
of this kind read is therefore divided, too, in the weights that make it.
"""

from __future__ import annotations

from dataclasses import replace

from edgerun_export.architectures.decoder.fields import dimensions, flag, number
from edgerun_export.architectures.decoder.spec import Config, DecoderSpec
from edgerun_export.architectures.scaled import granite


def describe(config: Config) -> DecoderSpec:
    """Describes a checkpoint of model_type ``hyperclovax``.

    Raises:
        CheckpointError: a key of config.json is missing or out of range.
        UnsupportedError: it asks for a variant without an implementation.
    """
    usual = float(dimensions(config)["head_dim"] ** -0.5)
    factors = {
        "logits_scaling": 1 / number(config, "logits_scaling", 1.0),
        "attention_multiplier": number(config, "attention_multiplier", usual),
    }
    spec = granite.describe({**config, **factors})
    spec = replace(spec, architecture="hyperclovax")
    if not flag(config, "use_post_norm", True):
        return spec
    added = dict.fromkeys(_making(spec), 1 / number(config, "residual_multiplier", 1.0))
    added = {name: factor for name, factor in added.items() if factor != 1}
    return replace(
        spec,
        attention_out_norm="post_norm1",
        feed_forward_out_norm="post_norm2",
        storage=replace(spec.storage, factors={**spec.storage.factors, **added}),
    )


def _making(spec: DecoderSpec) -> list[str]:
    """The tensors that make what layers add."""
    return [
        f"model.layers.{layer}.{path}.{kind}"
        for layer in range(spec.num_layers)
        for path in ("self_attn.o_proj", "mlp.down_proj")
        for kind in ("weight", "bias")
    ]


ARCHITECTURE = describe
