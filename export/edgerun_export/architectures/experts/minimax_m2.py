"""MiniMax M2: a part of each head is turned, and experts are chosen by sigmoids with a bias."""

from __future__ import annotations

from dataclasses import replace

from edgerun.errors import UnsupportedError
from edgerun.values import shown
from edgerun_export.architectures import llama
from edgerun_export.architectures.decoder.fields import experts_chosen, flag, positive
from edgerun_export.architectures.decoder.layer import Experts, Rope
from edgerun_export.architectures.decoder.rope import partial, rope_of_part
from edgerun_export.architectures.decoder.spec import Config, DecoderSpec
from edgerun_export.architectures.decoder.storage import Storage

_ROPE = ("rope_parameters", "rope_scaling", "partial_rotary_factor")
# What released configurations say beside what transformers reads, and what else it could be.
_SAID = {"qk_norm_type": "per_layer", "scoring_func": "sigmoid"}


def describe(config: Config) -> DecoderSpec:
    """Describes a checkpoint of model_type ``minimax_m2``.

    Raises:
        CheckpointError: a key of config.json is missing or out of range.
        UnsupportedError: it asks for a variant without an implementation.
    """
    for key, value in _SAID.items():
        if (config.get(key) or value) != value:
            raise UnsupportedError(
                f"minimax_m2 checkpoints with a {key} of {shown(config[key])} are not supported; "
                f"those with {value} are"
            )
    for key in ("use_qk_norm", "use_routing_bias"):
        if not flag(config, key, True):
            raise UnsupportedError(f"minimax_m2 checkpoints without {key} are not supported")
    spec = llama.describe({"head_dim": 128, **config, **dict.fromkeys(_ROPE)})
    turning, head_rows = partial(_rope(config, spec.head_dim), spec.head_dim)
    count, top_k = experts_chosen(config, "num_local_experts")
    experts = Experts(
        count=count,
        top_k=top_k,
        width=positive(config, "intermediate_size"),
        normalise=True,
        scoring="sigmoid",
        selection_bias="block_sparse_moe.e_score_correction_bias",
        module="block_sparse_moe",
        names=("w1", "w3", "w2"),
    )
    return replace(
        spec.with_feed_forward([experts] * spec.num_layers),
        architecture="minimax_m2",
        ropes=(turning,),
        biases=frozenset(),
        q_row_norm="self_attn.q_norm",
        k_row_norm="self_attn.k_norm",
        storage=Storage(head_rows=head_rows),
    )


def _rope(config: Config, head_dim: int) -> Rope:
    """The rotation of ``rotary_dim`` elements, as released configurations call them, or a part."""
    said = {"rope_theta": 5e6, **{k: v for k, v in config.items() if v is not None}}
    if config.get("rotary_dim") is not None:
        said["partial_rotary_factor"] = positive(config, "rotary_dim", limit=head_dim) / head_dim
    return rope_of_part(said, head_dim, 1.0)


ARCHITECTURE = describe
