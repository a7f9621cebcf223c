"""gpt-oss 20B and 120B: experts with biases, attention with sinks, windows in every other layer."""

from __future__ import annotations

from dataclasses import replace

from edgerun.activations.clamped_swiglu import ALPHA, LIMIT
from edgerun.errors import UnsupportedError
from edgerun_export.architectures import llama
from edgerun_export.architectures.decoder.fields import (
    experts_chosen,
    flag,
    number,
    positive,
    section,
    typed_windows,
)
from edgerun_export.architectures.decoder.layer import Experts
from edgerun_export.architectures.decoder.rope import rope
from edgerun_export.architectures.decoder.spec import Config, DecoderSpec

STORED = (None, "mxfp4")  # what may be said of how the experts are stored
HEAD_DIM = 64
# What transformers' GptOssConfig takes where nothing is said.
USUAL_ROPE = {
    "rope_type": "yarn",
    "factor": 32.0,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "truncate": False,
    "original_max_position_embeddings": 4096,
}


def describe(config: Config) -> DecoderSpec:
    """Describes a checkpoint of model_type ``gpt_oss``.

    Raises:
        CheckpointError: a key of config.json is missing or out of range.
        UnsupportedError: it asks for a variant without an implementation.
    """
    method = section(config, "quantization_config").get("quant_method")
    if method not in STORED:
        raise UnsupportedError(
            f"gpt_oss checkpoints quantised with '{method}' are not supported; those in bfloat16 "
            "and mxfp4 are"
        )
    for key, only in (("swiglu_limit", LIMIT), ("swiglu_alpha", ALPHA)):
        value = number(config, key, only)
        if value != only:
            raise UnsupportedError(
                f"gpt_oss checkpoints with a {key} of {value:g} are not supported; it must be "
                f"{only:g}"
            )
    config = {"head_dim": HEAD_DIM, **config}
    if not config.get("rope_parameters") and not config.get("rope_scaling"):
        config["rope_scaling"] = USUAL_ROPE
    # ``hidden_act`` says silu and means what follows.
    plain = {key: value for key, value in config.items() if key != "quantization_config"}
    spec = llama.describe({**plain, "hidden_act": "silu"})
    biased = flag(config, "attention_bias", True)
    count, top_k = experts_chosen(config, "num_local_experts")
    experts = Experts(
        count=count,
        top_k=top_k,
        width=positive(config, "intermediate_size"),
        normalise=True,
        router="router",
        biases=True,
    )
    every_other = [layer % 2 == 0 for layer in range(spec.num_layers)]
    window = positive(config, "sliding_window", 128)
    return replace(
        spec.with_feed_forward([experts] * spec.num_layers).with_windows(
            typed_windows(config, window, every_other)
        ),
        architecture="gpt_oss",
        norm_eps=number(config, "rms_norm_eps", 1e-5),
        ropes=(rope(config, spec.head_dim, default_theta=150000.0),),
        activation="clamped_swiglu",
        biases=frozenset({"q_proj", "k_proj", "v_proj", "o_proj"} if biased else ()),
        sinks="self_attn.sinks",
    )


ARCHITECTURE = describe
