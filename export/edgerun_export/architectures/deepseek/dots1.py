"""dots.llm1: norms of heads as Qwen 3 has them, experts as DeepSeek V3 has them."""

from __future__ import annotations

from dataclasses import replace

from edgerun_export.architectures import llama
from edgerun_export.architectures.decoder.biases import declared_biases
from edgerun_export.architectures.decoder.fields import natural, positive, typed_windows
from edgerun_export.architectures.decoder.spec import Config, DecoderSpec
from edgerun_export.architectures.deepseek.deepseek_v3 import with_experts

_MAX_LAYERS = 1024  # that may come before those with a window, whether there are so many or not
# Dots1Config's, where what is reused has others or none.
_USUAL = {"norm_topk_prob": False, "routed_scaling_factor": 1.0}
_AS_RELEASED = "noaux_tc"  # which names how experts are chosen; scores are sigmoids


def describe(config: Config) -> DecoderSpec:
    """Describes a checkpoint of model_type ``dots1``.

    Raises:
        CheckpointError: a key of config.json is missing or out of range.
        UnsupportedError: it asks for a variant without an implementation.
    """
    spec = llama.describe(config)
    layers = range(spec.num_layers)
    if config.get("sliding_window", 4096) is not None:  # null means that no layer has any
        usual = natural(config, "max_window_layers", 62, limit=_MAX_LAYERS)
        window = positive(config, "sliding_window", 4096)
        spec = spec.with_windows(typed_windows(config, window, [n >= usual for n in layers]))
    spec = replace(
        spec,
        biases=declared_biases(config, ("attention_bias",)),
        q_norm="self_attn.q_norm",
        k_norm="self_attn.k_norm",
    )
    first = natural(config, "first_k_dense_replace", 0, limit=spec.num_layers)
    said = {key: value for key, value in config.items() if value is not None}
    if said.get("scoring_func") == _AS_RELEASED:
        said["scoring_func"] = "sigmoid"
    return with_experts(spec, {**_USUAL, **said}, [n >= first for n in layers])


ARCHITECTURE = describe
