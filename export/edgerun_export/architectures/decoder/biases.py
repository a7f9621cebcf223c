"""Which projections have a bias: what config.json declares, and what the tensors show."""

from __future__ import annotations

from collections.abc import Container
from dataclasses import replace

from edgerun_export.architectures.decoder.fields import flag
from edgerun_export.architectures.decoder.spec import Config, DecoderSpec

_PROJECTIONS = {
    "attention_bias": ("q_proj", "k_proj", "v_proj", "o_proj"),
    "mlp_bias": ("gate_proj", "up_proj", "down_proj"),
}

# Keys whose absence leaves the matter open. GGUF has no such keys (llama.cpp loads whatever bias is
# there), and old checkpoints of these architectures were written without them.
_OPEN = {"llama": ("attention_bias", "mlp_bias"), "qwen3": ("attention_bias",)}


def declared_biases(
    config: Config, keys: tuple[str, ...] = ("attention_bias", "mlp_bias")
) -> frozenset[str]:
    """Returns the short names of the projections that ``config`` gives a bias."""
    return frozenset(
        projection for key in keys if flag(config, key) for projection in _PROJECTIONS[key]
    )


def with_stored_biases(spec: DecoderSpec, config: Config, tensors: Container[str]) -> DecoderSpec:
    """Adds the biases that any layer stores, of projections about which ``config`` says nothing."""
    open_keys = [key for key in _OPEN.get(spec.architecture, ()) if config.get(key) is None]
    open_names = {name for key in open_keys for name in _PROJECTIONS[key]}
    stored = {
        projection.name
        for layer in range(spec.num_layers if open_names else 0)
        for projection in spec.projections(layer)
        if projection.name in open_names
        and f"model.layers.{layer}.{projection.path}.bias" in tensors
    }
    return replace(spec, biases=spec.biases | stored) if stored else spec


def bias_keys(model_type: object, biases: frozenset[str]) -> dict[str, bool]:
    """Returns the keys of a config.json that declare ``biases``, where there are such."""
    return {
        key: True for key in _OPEN.get(str(model_type), ()) if biases.issuperset(_PROJECTIONS[key])
    }
