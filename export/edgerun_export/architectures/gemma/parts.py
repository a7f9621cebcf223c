"""What kinds of Gemma have in common: bounds, inputs of layers, layers without own keys."""

from __future__ import annotations

from collections.abc import Sequence

from edgerun.errors import CheckpointError
from edgerun_export.architectures.decoder.fields import flag, natural, number, positive
from edgerun_export.architectures.decoder.multimodal import Layout
from edgerun_export.architectures.decoder.spec import Config, DecoderSpec
from edgerun_export.architectures.decoder.streams import PerLayerInputs

MAX_WIDTH = 4096  # of a head, and of what layers are given beside the residual stream
# What layers that attend to keys and values of others may still have in a checkpoint.
_KEY_PARTS = ("k_proj", "v_proj", "k_norm", "v_norm")
WITH_SOUND = Layout(
    "model.language_model.",
    (
        "model.vision_tower.",
        "model.vision_embedder.",
        "model.embed_vision.",
        "model.audio_tower.",
        "model.audio_embedder.",
        "model.embed_audio.",
    ),
)


def like_llama(config: Config, head_dim: int, kv_heads: int, context: int) -> dict[str, object]:
    """The configuration of a Llama of the same sizes, whose ropes are those of no layer.

    Args:
        config: keys of config.json.
        head_dim: what stands for an absent ``head_dim``.
        kv_heads: likewise ``num_key_value_heads``.
        context: likewise ``max_position_embeddings``.

    Raises:
        CheckpointError: a key is out of range.
    """
    return {
        **config,
        "hidden_act": config.get("hidden_activation") or "gelu_pytorch_tanh",
        "head_dim": positive(config, "head_dim", head_dim, limit=MAX_WIDTH),
        "num_key_value_heads": positive(config, "num_key_value_heads", kv_heads),
        "max_position_embeddings": positive(config, "max_position_embeddings", context),
        "rope_parameters": None,
        "rope_scaling": None,
        "partial_rotary_factor": None,
        "tie_word_embeddings": flag(config, "tie_word_embeddings", True),
    }


def softcap(config: Config, key: str = "final_logit_softcapping") -> float | None:
    """The bound that ``key`` states, which is of logits unless given; None for none.

    Raises:
        CheckpointError: it is out of range.
    """
    return None if config.get(key) is None else number(config, key)


def per_layer_inputs(spec: DecoderSpec, width: int) -> PerLayerInputs:
    """What layers are given.

    Their product is divided by the root of the hidden size, which the norm sees by its epsilon.
    """
    return PerLayerInputs(width, spec.norm_eps * spec.hidden_size)


def stored_factors(spec: DecoderSpec) -> dict[str, float]:
    """What tensors are multiplied by: the embedding, and what makes inputs of layers."""
    root = float(spec.hidden_size) ** 0.5
    factors = {spec.embedding_weight: root}
    if spec.tied:
        factors[spec.final_norm_weight] = 1 / root
    inputs = spec.per_layer
    if inputs is not None:  # their sum is divided by the root of 2
        factors[inputs.table] = (inputs.width / 2) ** 0.5
        factors[f"{inputs.norm}.weight"] = 0.5**0.5
    return factors


def sources(config: Config, windows: Sequence[int | None], usual: int = 0) -> list[int | None]:
    """Of every layer the one whose keys and values it attends to; None for its own.

    Layers from some on attend to those of the last one before of their kind.

    Args:
        config: keys of config.json.
        windows: of all layers; layers of a kind have the same.
        usual: how many share, where ``config`` does not say it.

    Raises:
        CheckpointError: there are no layers of a kind before, or fewer layers than share.
    """
    count = len(windows)
    first = count - natural(config, "num_kv_shared_layers", usual, limit=count)
    own = {window: layer for layer, window in enumerate(windows[:first])}
    lacking = [layer for layer in range(first, count) if windows[layer] not in own]
    if lacking:
        raise CheckpointError(
            f"config.json: by num_kv_shared_layers {count - first} layer {lacking[0]} attends to "
            "keys and values of an earlier layer of its type, and there is none that has its own"
        )
    return [None if layer < first else own[windows[layer]] for layer in range(count)]


def unused_keys(spec: DecoderSpec) -> tuple[str, ...]:
    """How the names of tensors begin that such layers may have and do not compute with."""
    return tuple(
        f"model.layers.{layer}.self_attn.{part}."
        for layer in range(spec.num_layers)
        if not spec.has_keys(layer)
        for part in _KEY_PARTS
    )
