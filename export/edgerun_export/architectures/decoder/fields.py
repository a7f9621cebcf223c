"""Reads a checkpoint's ``config.json`` with checks, and the parts that architectures share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from edgerun.activations.registry import ACTIVATIONS
from edgerun.errors import CheckpointError, UnsupportedError
from edgerun.values import shown
from edgerun_export.architectures.decoder.layer import Dense, LayerSpec
from edgerun_export.architectures.decoder.spec import Config, TernaryOrigin
from edgerun_export.architectures.decoder.usual_texts import usual_key_heads

# Larger than anything known; what exceeds it would only exhaust memory.
_MAX_SIZE, _MAX_LAYERS, _MAX_EXPERTS = 1 << 24, 1024, 4096
_MAX_HEAD_DIM, _MAX_WIDTH = 1 << 14, 1 << 20
_MIN_NUMBER, _MAX_NUMBER = 1e-12, 1e12
# Quantisation methods whose layers the reader makes plain weights of (``checkpoint/views``).
_RESOLVED = ("awq", "gptq", "fp8", "compressed-tensors", "modelopt", "fbgemm_fp8")
# By a method that is not read: what to take instead.
_INSTEAD = {
    "bitsandbytes": "its codes (nf4, fp4, int8) are made of a model as it is loaded, so export the "
    "unquantised checkpoint that they were made of, or its GPTQ, AWQ, compressed-tensors or GGUF "
    "form, and let --weights int4 or int8 make it small",
}
# By the names that checkpoints have for them.
_ACTIVATIONS = {
    alias: name for name, activation in ACTIVATIONS.items() for alias in (name, *activation.aliases)
}


def positive(
    config: Config, key: str, default: int | None = None, *, limit: int = _MAX_SIZE
) -> int:
    """Returns a positive integer; ``default`` stands for an absent or null key.

    Raises:
        CheckpointError: the key is missing, or holds anything else or more than ``limit``.
    """
    value = config.get(key)
    value = default if value is None else value
    if isinstance(value, bool) or not isinstance(value, int) or not 0 < value <= limit:
        raise CheckpointError(
            f"config.json: '{key}' is {value!r} and must be a whole number from 1 to {limit}"
        )
    return value


def natural(config: Config, key: str, default: int, *, limit: int) -> int:
    """Returns a whole number from 0 on; ``default`` stands for an absent or null key.

    Raises:
        CheckpointError: the key holds anything else or more than ``limit``.
    """
    value = config.get(key)
    value = default if value is None else value
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= limit:
        raise CheckpointError(
            f"config.json: '{key}' is {value!r} and must be a whole number from 0 to {limit}"
        )
    return value


def number(config: Config, key: str, default: float | None = None) -> float:
    """Returns a positive number; ``default`` stands for an absent or null key.

    Raises:
        CheckpointError: the key is missing, or holds anything else or something absurd.
    """
    value = config.get(key)
    value = default if value is None else value
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if value is None or not is_number or not _MIN_NUMBER <= value <= _MAX_NUMBER:
        raise CheckpointError(
            f"config.json: '{key}' is {value!r} and must be a number from {_MIN_NUMBER:g} to "
            f"{_MAX_NUMBER:g}"
        )
    return float(value)


def flag(config: Config, key: str, default: bool = False) -> bool:
    """Returns a truth value; ``default`` stands for an absent or null key."""
    value = config.get(key)
    return default if value is None else bool(value)


def nullable_flag(config: Config, key: str) -> bool:
    """Returns a truth value that is true where the key is absent, and false where it is null.

    So transformers takes the flags whose null it does not refuse.
    """
    return bool(config.get(key, True))


def section(config: Config, key: str) -> Config:
    """Returns a nested object, empty for an absent or null key.

    Raises:
        CheckpointError: the key holds something else.
    """
    value = config.get(key)
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise CheckpointError(f"config.json: '{key}' must be an object, not {value!r}")
    return value


def said_of_rope(config: Config) -> Config:
    """What is said of the rope: ``rope_scaling`` where there is one, or ``rope_parameters``.

    The first is older, and still what people add to a configuration that has the second; then
    transformers 5 goes by it alone.
    """
    return section(config, "rope_scaling") or section(config, "rope_parameters")


def says_of_rope(config: Config) -> bool:
    """Whether anything is said of it: an empty ``rope_parameters`` means the usual rope."""
    return bool(said_of_rope(config)) or config.get("rope_parameters") is not None


def layer_thetas(config: Config, num_layers: int) -> list[float] | None:
    """Returns the base of each layer's rope, 0 for none; None where ``config`` lists none.

    Raises:
        CheckpointError: ``layer_rope_theta`` is no list of as many numbers as there are layers.
    """
    key = "layer_rope_theta"
    listed = config.get(key)
    if listed is None:
        return None
    if not isinstance(listed, list) or any(type(each) not in (int, float) for each in listed):
        raise CheckpointError(
            f"config.json: '{key}' is {shown(listed)} and must be a list of numbers"
        )
    if len(listed) != num_layers:
        raise CheckpointError(
            f"config.json: '{key}' has {len(listed)} numbers, the model has {num_layers} layers"
        )
    bad = [each for each in listed if each != 0 and not _MIN_NUMBER <= each <= _MAX_NUMBER]
    if bad:
        raise CheckpointError(
            f"config.json: '{key}' holds {shown(bad[0])}; expected 0 or a number from "
            f"{_MIN_NUMBER:g} to {_MAX_NUMBER:g}"
        )
    return [float(each) for each in listed]


def check_activation(config: Config, name: str, activation: str) -> None:
    """Refuses an activation that is not the only one of an architecture.

    Raises:
        UnsupportedError: it is another.
    """
    said = config.get("hidden_act") or activation
    if said != activation:
        raise UnsupportedError(
            f"{name} checkpoints with a hidden_act of '{said}' are not supported; those with "
            f"{activation} are"
        )


def check_off(config: Config, name: str, keys: tuple[str, ...]) -> None:
    """Refuses a checkpoint whose configuration switches something on.

    Raises:
        UnsupportedError: it does.
    """
    for key in keys:
        if flag(config, key):
            raise UnsupportedError(
                f"{name} checkpoints with {key} {config[key]} are not supported; those without are"
            )


def context_length(config: Config) -> int:
    """Returns how many tokens of a text a model can tell apart.

    Those who add YaRN to a configuration, as model cards of Qwen2.5 and Qwen3 say to, leave
    ``max_position_embeddings`` as it is; then the context is what it was trained with times the
    factor, as in vLLM. Where both are raised, they agree.

    Raises:
        CheckpointError: a key holds no number, or the product is absurd.
    """
    stated = positive(config, "max_position_embeddings", 2048)
    said, original = said_of_rope(config), "original_max_position_embeddings"
    is_yarn = (said.get("rope_type") or said.get("type")) == "yarn"
    if not is_yarn or said.get("factor") is None or said.get(original) is None:
        return stated
    scaled = int(positive(said, original) * number(said, "factor"))
    if scaled > _MAX_SIZE:
        raise CheckpointError(
            f"config.json: YaRN by {said['factor']} makes a context of {scaled} tokens; expected "
            f"{_MAX_SIZE} at most"
        )
    return max(stated, scaled)


def names(config: Config, key: str) -> list[str]:
    """Returns a list of strings, empty for an absent or null key.

    Raises:
        CheckpointError: the key holds something else.
    """
    value = config.get(key)
    if value is None:
        return []
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise CheckpointError(f"config.json: '{key}' must be a list of names")
    return value


def activation(config: Config, default: str = "silu") -> str:
    """Returns the feed-forward activation.

    Raises:
        UnsupportedError: it is none that the graph builder knows.
    """
    name = str(config.get("hidden_act") or default)
    if name not in _ACTIVATIONS:
        supported = ", ".join(_ACTIVATIONS)
        raise UnsupportedError(f"activation '{name}' is not supported; supported are: {supported}")
    return _ACTIVATIONS[name]


def check_width(what: str, width: int) -> None:
    """Bounds what sizes make together, each of which is no more than others have.

    Args:
        what: whose elements they are, as a plural.
        width: how many.

    Raises:
        CheckpointError: they are more than any model has.
    """
    if width > _MAX_WIDTH:
        raise CheckpointError(
            f"config.json: {what} have {width} elements together; expected {_MAX_WIDTH} at most"
        )


def dimensions(config: Config) -> dict[str, Any]:
    """Returns the sizes that every architecture has, as arguments of ``DecoderSpec``.

    Raises:
        CheckpointError: a size is missing, not positive, or does not fit the others.
    """
    hidden = positive(config, "hidden_size")
    layers = positive(config, "num_hidden_layers", limit=_MAX_LAYERS)
    heads = positive(config, "num_attention_heads")
    kv_heads = positive(config, "num_key_value_heads", usual_key_heads(config, heads))
    if heads % kv_heads:
        raise CheckpointError(
            f"config.json: num_attention_heads {heads} is not a multiple of "
            f"num_key_value_heads {kv_heads}"
        )
    if config.get("head_dim") is None and hidden % heads:
        raise CheckpointError(
            f"config.json: hidden_size {hidden} is not a multiple of num_attention_heads {heads}"
        )
    head_dim = positive(config, "head_dim", hidden // heads, limit=_MAX_HEAD_DIM)
    check_width(f"{heads} heads of {head_dim}", heads * head_dim)
    if head_dim % 2:
        raise CheckpointError(f"config.json: head_dim {head_dim} is odd; rotary needs an even one")
    return {
        "hidden_size": hidden,
        "layers": (LayerSpec(Dense(positive(config, "intermediate_size"))),) * layers,
        "num_heads": heads,
        "num_kv_heads": kv_heads,
        "head_dim": head_dim,
        "vocab_size": positive(config, "vocab_size"),
        "context_length": context_length(config),
    }


def experts_chosen(
    config: Config, count_key: str, chosen_key: str = "num_experts_per_tok"
) -> tuple[int, int]:
    """Returns how many experts there are, and how many of them a token goes to.

    Raises:
        CheckpointError: a number is missing, or there are fewer than are chosen.
    """
    count = positive(config, count_key, limit=_MAX_EXPERTS)
    top_k = positive(config, chosen_key)
    if top_k > count:
        raise CheckpointError(
            f"config.json: a token goes to {chosen_key} {top_k} experts, and there are "
            f"{count_key} {count}"
        )
    return count, top_k


def layer_windows(config: Config, num_layers: int) -> tuple[int | None, ...]:
    """Returns each layer's sliding window as qwen2 and qwen3 describe it.

    ``use_sliding_window`` switches the window on; ``layer_types`` names the layers, or else those
    from ``max_window_layers`` on have it (transformers, ``configuration_qwen2``).

    Raises:
        CheckpointError: ``layer_types`` has another length than the model has layers.
        UnsupportedError: it names a type without an implementation.
    """
    if not flag(config, "use_sliding_window") or config.get("sliding_window", 4096) is None:
        return (None,) * num_layers
    window = positive(config, "sliding_window", 4096)
    first = config.get("max_window_layers", 28)
    if not isinstance(first, int):
        raise CheckpointError(f"config.json: 'max_window_layers' is {first!r}, not a whole number")
    return typed_windows(config, window, [layer >= first for layer in range(num_layers)])


def typed_windows(config: Config, window: int, usual: Sequence[bool]) -> tuple[int | None, ...]:
    """Returns each layer's window as ``layer_types`` says.

    Args:
        config: keys of config.json.
        window: of the layers that have one.
        usual: of every layer whether it has one, unless ``layer_types`` says something.

    Raises:
        CheckpointError: ``layer_types`` has another length than the model has layers.
        UnsupportedError: it names a type without an implementation, or the window is null.
    """
    types = names(config, "layer_types")
    others = sorted({*types} - {"full_attention", "sliding_attention"})
    if others:
        raise UnsupportedError(
            f"config.json: layer_types names '{others[0]}', which is not supported; "
            "full_attention and sliding_attention are"
        )
    slides = [kind == "sliding_attention" for kind in types] if types else usual
    if len(slides) != len(usual):
        raise CheckpointError(
            f"config.json: layer_types names {len(slides)} layers, the model has {len(usual)}"
        )
    if any(slides) and config.get("sliding_window", window) is None:
        raise UnsupportedError(
            "config.json: 'sliding_window' is null where layers have a window, which is not "
            "supported; say how many tokens it has"
        )
    return tuple(window if slide else None for slide in slides)


def sparse_layers(config: Config, usual: Sequence[bool]) -> list[bool]:
    """Returns of every layer whether it has experts, as ``mlp_layer_types`` says.

    Args:
        config: keys of config.json.
        usual: the same, unless ``config`` says something.

    Raises:
        CheckpointError: there are other types, or other layers than the model has.
    """
    types = names(config, "mlp_layer_types")
    if types and (len(types) != len(usual) or not {*types} <= {"dense", "sparse"}):
        raise CheckpointError(
            f"config.json: mlp_layer_types must be {len(usual)} times 'dense' or 'sparse', "
            f"not {types[:8]}"
        )
    return [kind == "sparse" for kind in types] or [*usual]


def ternary_origin(config: Config, default: TernaryOrigin | None = None) -> TernaryOrigin | None:
    """Tells how a natively ternary checkpoint stores its projections.

    transformers' ``quantization_config`` with ``quant_method: bitnet`` marks one, whatever the
    architecture: mode ``online`` keeps float master weights, ``offline`` packed ternary values.

    Raises:
        UnsupportedError: the checkpoint is quantised by another method, or as no released b1.58
            model is.
    """
    quantization = section(config, "quantization_config")
    if not quantization:
        return default
    method = quantization.get("quant_method")
    if method in _RESOLVED:
        return default
    if method != "bitnet":
        raise UnsupportedError(
            f"checkpoints quantised with {shown(method)} are not supported; "
            f"{_INSTEAD.get(str(method), 'export the unquantised checkpoint of the model instead')}"
        )
    if quantization.get("use_rms_norm"):
        raise UnsupportedError("bitnet checkpoints with use_rms_norm are not supported")
    unconverted = set(names(quantization, "modules_to_not_convert")) - {"lm_head"}
    if unconverted:
        raise UnsupportedError(
            "bitnet checkpoints that leave projections unquantised are not supported "
            f"(modules_to_not_convert names {', '.join(sorted(unconverted))})"
        )
    online = quantization.get("quantization_mode") == "online"
    autobit = quantization.get("linear_class") == "autobitlinear"
    return "master" if online and autobit else "packed"
