"""What these decoders have in common: sizes, kinds of layers, how a state space is stored."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from edgerun.errors import CheckpointError, UnsupportedError
from edgerun_export.architectures.decoder.fields import (
    check_width,
    flag,
    names,
    nullable_flag,
    positive,
)
from edgerun_export.architectures.decoder.spec import Config, DecoderSpec
from edgerun_export.architectures.decoder.state_space import StateSpace

MAX_TAPS, MAX_HEADS, MAX_DIM = 64, 4096, 4096  # more than any model has
FLOAT32_MAX = 3.4028235e38
# As released models call layers, and as transformers 5 does.
SPACES, ATTENTION = ("mamba", "linear_attention"), ("attention", "full_attention")
# Defaults that the configurations of transformers have in common.
_HEADS, _GROUPS, _STATE_DIM, _TAPS, _EXPAND = 128, 1, 256, 4, 2


def state_space(config: Config, name: str, inner: int, norm_eps: float) -> StateSpace:
    """Reads the sizes of a state space as Granite 4, Bamba and Falcon H1 have them.

    Args:
        config: keys of config.json.
        name: the model_type.
        inner: elements of the inputs of all heads.
        norm_eps: epsilon of its norm.

    Raises:
        CheckpointError: a key of config.json is missing or out of range.
        UnsupportedError: it asks for a variant without an implementation.
    """
    check_variant(config, name, conv_bias="mamba_conv_bias", biases=("mamba_proj_bias",))
    heads = positive(config, "mamba_n_heads", _HEADS, limit=MAX_HEADS)
    stated = config.get("mamba_d_head")
    head_dim = None if stated == "auto" else stated
    if inner % heads or (head_dim is not None and head_dim != inner // heads):
        raise CheckpointError(
            f"config.json: mamba_n_heads {heads} of mamba_d_head {stated} are not the {inner} "
            "elements that a state space has"
        )
    return checked(
        StateSpace(
            heads,
            positive(config, "mamba_n_groups", _GROUPS, limit=MAX_HEADS),
            inner // heads,
            positive(config, "mamba_d_state", _STATE_DIM, limit=MAX_DIM),
            positive(config, "mamba_d_conv", _TAPS, limit=MAX_TAPS),
            norm_eps,
        )
    )


def expanded(config: Config, hidden_size: int) -> int:
    """Elements of the inputs of all heads, where a factor says them."""
    return positive(config, "mamba_expand", _EXPAND) * hidden_size


def checked(space: StateSpace) -> StateSpace:
    """The same if its sizes fit together.

    Raises:
        CheckpointError: groups do not divide the heads, or they are larger than any model's.
        UnsupportedError: its convolution reads no earlier token.
    """
    if space.heads % space.groups:
        raise CheckpointError(
            f"config.json: {space.heads} heads of state spaces are not a multiple of "
            f"{space.groups} groups"
        )
    if space.head_dim > MAX_DIM:
        raise CheckpointError(
            f"config.json: heads of state spaces have {space.head_dim} elements, more than "
            f"{MAX_DIM}"
        )
    check_width("inputs, keys and queries of state spaces", space.width)
    if space.taps == 1:
        raise UnsupportedError(
            "checkpoints whose state spaces convolve by 1 tap, which reads no earlier token, are "
            "not supported; those with 2 and more are"
        )
    return space


def check_variant(
    config: Config,
    name: str,
    *,
    conv_bias: str,
    biases: Collection[str],
    activation: str = "hidden_act",
) -> None:
    """Refuses what state spaces have no implementation with.

    Args:
        config: keys of config.json.
        name: the model_type.
        conv_bias: key that says whether convolutions have a bias.
        biases: keys that say whether projections have one.
        activation: key of the function behind the convolution.

    Raises:
        UnsupportedError: there is such.
    """
    if not nullable_flag(config, conv_bias):
        raise UnsupportedError(
            f"{name} checkpoints without biases in convolutions ({conv_bias}) are not supported"
        )
    for key in biases:
        if flag(config, key):
            raise UnsupportedError(
                f"{name} checkpoints with biases in the projections of state spaces ({key}) are "
                "not supported"
            )
    function = config.get(activation)
    if function not in (None, "silu", "swish"):
        raise UnsupportedError(
            f"{name} checkpoints with {activation} '{function}' are not supported: their "
            "convolutions go through it; those with silu are"
        )
    limit = config.get("time_step_limit")
    if limit is not None and not _is_no_limit(limit):
        raise UnsupportedError(
            f"{name} checkpoints with a time_step_limit of {str(limit)[:60]} are not supported; "
            "those from 0 to infinity are"
        )


def _is_no_limit(limit: object) -> bool:
    """Whether a time is kept from 0, where softplus begins, to infinity, in any spelling.

    Numbers that float32 does not have are some tools' spelling of infinity.
    """
    if not isinstance(limit, (list, tuple)) or len(limit) != 2:
        return False
    ends = [each.get("__float__") if isinstance(each, Mapping) else each for each in limit]
    try:
        return float(str(ends[0])) <= 0 and float(str(ends[1])) > FLOAT32_MAX
    except ValueError:
        return False


def layer_kinds(config: Config, name: str, num_layers: int, usual: Sequence[str]) -> list[bool]:
    """Of each layer whether it has a state space, and else attention.

    Raises:
        CheckpointError: other layers are named than there are.
        UnsupportedError: a type has no implementation, or no layer attends.
    """
    key = "layer_types" if config.get("layer_types") is not None else "layers_block_type"
    kinds = names(config, key) or list(usual)
    if others := sorted({*kinds} - {*SPACES, *ATTENTION}):
        raise UnsupportedError(
            f"{name} checkpoints with layers of '{others[0]}' are not supported; those with "
            f"{SPACES[0]} and {ATTENTION[0]} are"
        )
    if len(kinds) != num_layers:
        raise CheckpointError(
            f"config.json: {key} names {len(kinds)} layers, the model has {num_layers}"
        )
    check_attention([kind in ATTENTION for kind in kinds], name)
    return [kind in SPACES for kind in kinds]


def check_attention(attends: Sequence[bool], name: str) -> None:
    """Refuses models without attention, whose context no state of theirs says.

    Raises:
        UnsupportedError: there is none.
    """
    if not any(attends):
        raise UnsupportedError(f"{name} checkpoints without a layer of attention are not supported")


def renamed(spec: DecoderSpec, names: Mapping[str, str]) -> dict[str, str]:
    """By the names of all tensors of modules in layers those that they are stored under."""
    return {
        f"model.layers.{layer}.{own}.{kind}": f"model.layers.{layer}.{stored}.{kind}"
        for layer in range(spec.num_layers)
        for own, stored in names.items()
        for kind in ("weight", "bias")
    }


def with_state_spaces(spec: DecoderSpec, spaces: Sequence[StateSpace | None]) -> DecoderSpec:
    """The same decoder with state spaces in some layers, and how these are stored."""
    layers = tuple(
        replace(layer, space=space) for layer, space in zip(spec.layers, spaces, strict=True)
    )
    rates, joined, logarithms = {}, {}, set()
    for number, space in enumerate(spaces):
        if space is not None:
            module = f"model.layers.{number}.{space.module}"
            rates[f"model.layers.{number}.{space.rate}"] = f"{module}.A_log"
            joined[f"{space.module}.in_proj"] = ("z_proj", "xbc_proj", "dt_proj")
            logarithms.add(space.rate)
    storage = replace(
        spec.storage,
        joined={**spec.storage.joined, **joined},
        names={**spec.storage.names, **rates},
        logarithms=(*spec.storage.logarithms, *sorted(logarithms)),
    )
    return replace(spec, layers=layers, storage=storage)
