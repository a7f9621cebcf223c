"""Nemotron-H: layers of one part each, a state space, attention, a network or experts.

Nemotron Nano 2 has networks, Nemotron 3 Nano experts. Neither has gates: what goes through squared
ReLU is multiplied by itself. Attention has no rope.
"""

from __future__ import annotations

from dataclasses import replace

from edgerun.errors import CheckpointError, UnsupportedError
from edgerun_export.architectures import llama
from edgerun_export.architectures.decoder.fields import (
    check_off,
    experts_chosen,
    flag,
    names,
    natural,
    number,
    positive,
)
from edgerun_export.architectures.decoder.layer import (
    Dense,
    Experts,
    FeedForward,
    LayerSpec,
    SharedExpert,
)
from edgerun_export.architectures.decoder.spec import Config, DecoderSpec
from edgerun_export.architectures.decoder.state_space import StateSpace
from edgerun_export.architectures.decoder.storage import MTP_LEFT_OUT, Storage
from edgerun_export.architectures.state_spaces.parts import (
    ATTENTION,
    MAX_DIM,
    MAX_HEADS,
    MAX_TAPS,
    SPACES,
    check_attention,
    check_variant,
    checked,
    with_state_spaces,
)

_NAME, _MODULE = "nemotron_h", "mixer"
_NETWORK, _EXPERTS = "mlp", "moe"
_LETTERS = {"M": SPACES[0], "*": ATTENTION[0], "-": _NETWORK, "E": _EXPERTS}
_MAX_PREDICTED = 64
# What nothing is done by.
_UNREAD = ("rope_parameters", "rope_scaling", "rope_theta", "partial_rotary_factor", "hidden_act")
# NemotronHConfig's, where what is reused has others or none.
_USUAL = {
    "vocab_size": 131072,
    "hidden_size": 4096,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "max_position_embeddings": 4096,
    "intermediate_size": 21504,
    "layer_norm_epsilon": 1e-5,
    "mlp_hidden_act": "relu2",
    "norm_topk_prob": True,
    "n_routed_experts": 8,
    "num_experts_per_tok": 2,
    "n_shared_experts": 1,
}
_EXPERT_WIDTH = 7688


def describe(config: Config) -> DecoderSpec:
    """Describes a checkpoint of model_type ``nemotron_h``.

    Raises:
        CheckpointError: a key of config.json is missing or out of range.
        UnsupportedError: it asks for a variant without an implementation.
    """
    config = {**_USUAL, **{key: value for key, value in config.items() if value is not None}}
    kinds = _kinds(config)
    _check(config)
    norm_eps = number(config, "layer_norm_epsilon")
    sizes = {"num_hidden_layers": len(kinds), "rms_norm_eps": norm_eps}
    spec = llama.describe({**config, **dict.fromkeys(_UNREAD), **sizes})
    predicted = natural(config, "num_nextn_predict_layers", 0, limit=_MAX_PREDICTED)
    spec = replace(
        spec,
        architecture=_NAME,
        activation="relu",
        layers=tuple(_layer(config, kind) for kind in kinds),
        biases=frozenset(),
        notes=(MTP_LEFT_OUT,) if predicted else (),
        storage=Storage(
            names=_stored_names(spec, kinds),
            prefix="backbone.",
            unused=_predicting(len(kinds), predicted),
        ),
    )
    space = _space(config, norm_eps) if {*kinds} & {*SPACES} else None
    return with_state_spaces(spec, [space if kind in SPACES else None for kind in kinds])


def _predicting(layers: int, count: int) -> tuple[str, ...]:
    """How names begin of what predicts more tokens: GGUF files have it as layers behind others."""
    own = [f"backbone.layers.{layer}." for layer in range(layers, layers + count)]
    return ("mtp.", *own) if count else ()


def _kinds(config: Config) -> list[str]:
    """What each layer has, which says how many there are.

    Raises:
        CheckpointError: nothing says so.
        UnsupportedError: a type has no implementation, or no layer attends.
    """
    key = next((k for k in ("layers_block_type", "layer_types") if k in config), "")
    pattern = config.get("hybrid_override_pattern")
    if not key and not isinstance(pattern, str):
        raise CheckpointError(
            "config.json has neither 'layers_block_type' nor a 'hybrid_override_pattern', which "
            "say what layers have"
        )
    kinds = names(config, key) if key else [_LETTERS.get(each, each) for each in str(pattern)]
    if others := sorted({*kinds} - {*SPACES, *ATTENTION, _NETWORK, _EXPERTS}):
        raise UnsupportedError(
            f"{_NAME} checkpoints with layers of '{others[0]}' are not supported; those with "
            f"{', '.join(_LETTERS.values())} are"
        )
    check_attention([kind in ATTENTION for kind in kinds], _NAME)
    return kinds


def _check(config: Config) -> None:
    check_variant(
        config,
        _NAME,
        conv_bias="use_conv_bias",
        biases=("use_bias", "mamba_proj_bias"),
        activation="mamba_hidden_act",
    )
    check_off(config, _NAME, ("attention_bias", "mlp_bias"))
    for key in ("sliding_window", "moe_latent_size"):
        if config.get(key) is not None:
            raise UnsupportedError(f"{_NAME} checkpoints with a {key} are not supported")
    if config["mlp_hidden_act"] != "relu2":
        raise UnsupportedError(
            f"{_NAME} checkpoints with mlp_hidden_act '{config['mlp_hidden_act']}' are not "
            "supported; those with relu2 are"
        )


def _layer(config: Config, kind: str) -> LayerSpec:
    if kind not in (_NETWORK, _EXPERTS):
        return LayerSpec(None, rope=None)
    part: FeedForward = (
        Dense(positive(config, "intermediate_size"), gated=False)
        if kind == _NETWORK
        else _experts(config)
    )
    return LayerSpec(part, mixes=False, rope=None)


def _experts(config: Config) -> Experts:
    for key, expected in (("n_group", 1), ("topk_group", 1), ("n_shared_experts", 1)):
        if positive(config, key, 1) != expected:
            raise UnsupportedError(
                f"{_NAME} checkpoints with a {key} of {config[key]} are not supported; those with "
                f"{expected} are"
            )
    count, top_k = experts_chosen(config, "n_routed_experts")
    shared = positive(config, "moe_shared_expert_intermediate_size", _EXPERT_WIDTH)
    return Experts(
        count=count,
        top_k=top_k,
        width=positive(config, "moe_intermediate_size", _EXPERT_WIDTH),
        normalise=flag(config, "norm_topk_prob"),
        scoring="sigmoid",
        selection_bias=f"{_MODULE}.gate.e_score_correction_bias",
        scale=number(config, "routed_scaling_factor", 1.0),
        module=_MODULE,
        shared=SharedExpert(shared, f"{_MODULE}.shared_experts", gate=""),
        gated=False,
    )


def _space(config: Config, norm_eps: float) -> StateSpace:
    return checked(
        StateSpace(
            positive(config, "mamba_num_heads", 128, limit=MAX_HEADS),
            positive(config, "n_groups", 8, limit=MAX_HEADS),
            positive(config, "mamba_head_dim", 64, limit=MAX_DIM),
            positive(config, "ssm_state_size", 128, limit=MAX_DIM),
            positive(config, "conv_kernel", 4, limit=MAX_TAPS),
            norm_eps,
            module=_MODULE,
        )
    )


def _stored_names(spec: DecoderSpec, kinds: list[str]) -> dict[str, str]:
    """Everything in a layer is called a mixer, and the norm before it a norm."""
    stored = {
        spec.embedding_weight: "model.embeddings.weight",
        spec.final_norm_weight: "model.norm_f.weight",
    }
    for layer, kind in enumerate(kinds):
        own = f"model.layers.{layer}"
        feeds = kind in (_NETWORK, _EXPERTS)
        norm = spec.feed_forward_norm if feeds else spec.input_norm
        stored[f"{own}.{norm}.weight"] = f"{own}.norm.weight"
        for module, paths in (
            ("self_attn", ("q_proj", "k_proj", "v_proj", "o_proj")),
            ("mlp", ("up_proj", "down_proj")),
        ):
            for path in paths:
                stored[f"{own}.{module}.{path}.weight"] = f"{own}.{_MODULE}.{path}.weight"
    return stored


ARCHITECTURE = describe
