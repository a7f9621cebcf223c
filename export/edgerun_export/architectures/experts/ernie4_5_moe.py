"""ERNIE 4.5 with experts (ERNIE 4.5 21B A3B), some of which all tokens go through."""

from __future__ import annotations

from dataclasses import replace

from edgerun.errors import CheckpointError, UnsupportedError
from edgerun_export.architectures import llama
from edgerun_export.architectures.decoder.fields import (
    check_off,
    experts_chosen,
    flag,
    natural,
    number,
    positive,
)
from edgerun_export.architectures.decoder.layer import Dense, Experts, FeedForward, SharedExpert
from edgerun_export.architectures.decoder.rope import behind, rope
from edgerun_export.architectures.decoder.spec import Config, DecoderSpec
from edgerun_export.architectures.decoder.storage import MTP_LEFT_OUT, Storage

_MAX_SHARED = 64  # more than any model has
_MAX_PREDICTED = 64
# transformers divides by no less than ``moe_norm_min``, and the form of a bundle adds it to the
# sum: with one so small both are the same unless all that are chosen have next to no score.
_MOST_NORM_MIN = 1e-9


def describe(config: Config) -> DecoderSpec:
    """Describes a checkpoint of model_type ``ernie4_5_moe``.

    Raises:
        CheckpointError: a key of config.json is missing or out of range.
        UnsupportedError: it asks for a variant without an implementation.
    """
    check_off(config, "ernie4_5_moe", ("use_bias",))
    spec = llama.describe(
        {**config, "tie_word_embeddings": flag(config, "tie_word_embeddings", True)}
    )
    turning = rope(config, spec.head_dim, default_theta=500000.0)
    turning, order = behind(turning, spec.head_dim, interleaved=True)
    predicted = natural(config, "num_nextn_predict_layers", 0, limit=_MAX_PREDICTED)
    return replace(
        spec.with_feed_forward(_feed_forward(config, spec.num_layers)),
        architecture="ernie4_5_moe",
        norm_eps=number(config, "rms_norm_eps", 1e-5),
        ropes=(turning,),
        biases=frozenset(),
        storage=Storage(head_rows=order, unused=("model.mtp_",) if predicted else ()),
        notes=(MTP_LEFT_OUT,) if predicted else (),
    )


def _feed_forward(config: Config, num_layers: int) -> list[FeedForward]:
    first = natural(config, "moe_layer_start_index", 1, limit=num_layers)
    last = _last(config, num_layers)
    step = positive(config, "moe_layer_interval", 1)
    dense, experts = Dense(positive(config, "intermediate_size")), _experts(config)
    return [
        experts if first <= layer <= last and (layer + 1) % step == 0 else dense
        for layer in range(num_layers)
    ]


def _last(config: Config, num_layers: int) -> int:
    """The last layer that may have experts, which -1 stands for the last of all."""
    last = config.get("moe_layer_end_index")
    if last is None or last == -1:
        return num_layers - 1
    if type(last) is not int or not 0 <= last < num_layers:
        raise CheckpointError(
            f"config.json: 'moe_layer_end_index' is {last!r} and must be -1 or the number of a "
            f"layer, 0 to {num_layers - 1}"
        )
    return last


def _experts(config: Config) -> Experts:
    count, top_k = experts_chosen(config, "moe_num_experts", "moe_k")
    width = positive(config, "moe_intermediate_size")
    shared = natural(config, "moe_num_shared_experts", 2, limit=_MAX_SHARED)
    epsilon = number(config, "moe_norm_min", 1e-12)
    if epsilon > _MOST_NORM_MIN:
        raise UnsupportedError(
            f"ernie4_5_moe checkpoints with a moe_norm_min of {epsilon:g} are not supported; it "
            f"must be at most {_MOST_NORM_MIN:g}"
        )
    return Experts(
        count=count,
        top_k=top_k,
        width=width,
        normalise=True,
        selection_bias="mlp.moe_statics.e_score_correction_bias",
        selection_bias_axes=2,
        epsilon=epsilon,
        shared=SharedExpert(shared * width, "mlp.shared_experts", gate="") if shared else None,
    )


ARCHITECTURE = describe
