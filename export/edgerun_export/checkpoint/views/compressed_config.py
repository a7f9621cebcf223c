"""What the configuration of compressed-tensors says of weights.

Groups of layers have weights of a type, ``int`` or ``float``, in so many bits, and a strategy: one
scale for a ``tensor``, for each output (``channel``), or for each ``group`` of inputs. Where the
strategy is left out, it follows from ``group_size``: no number is a tensor, -1 an output. Groups
have a format of their own, or that of the whole: ``pack-quantized`` has several codes in an int32,
``int-quantized`` and ``naive-quantized`` an int8 for each.

Source: compressed-tensors 0.20, ``quantization/quant_config.py`` and ``quant_args.py``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from edgerun.errors import UnsupportedError
from edgerun.values import shown

INSTEAD = "export the model's unquantised checkpoint instead"
_METHOD = "compressed-tensors"
FORMATS = ("pack-quantized", "int-quantized", "naive-quantized")  # of integers
_BITS = (2, 4, 8)
_STRATEGIES = ("tensor", "channel", "group")
Settings = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class IntegerWeights:
    """How a checkpoint stores weights as integers.

    Attributes:
        bits: of codes, each of which some layers have.
        group_sizes: inputs that share a scale, each of which some layers have.
        symmetric: whether all zero points are said to be the middle of the codes.
    """

    bits: frozenset[int]
    group_sizes: frozenset[int]
    symmetric: bool


def integer_weights_of(config: Mapping[str, Any]) -> IntegerWeights | None:
    """What ``config.json`` says of weights that are integers; None if there are none.

    Raises:
        UnsupportedError: it says what cannot be read.
    """
    settings = config.get("quantization_config")
    if not isinstance(settings, Mapping) or settings.get("quant_method") != _METHOD:
        return None
    groups = [weights for _, weights in weight_groups(settings) if is_integer(weights)]
    if not groups:
        return None
    return IntegerWeights(
        frozenset(weights.get("num_bits", 8) for weights in groups),
        frozenset(size for size in map(_group_size, groups) if size is not None),
        all(weights.get("symmetric", True) is True for weights in groups),
    )


def weight_groups(settings: Settings) -> Iterator[tuple[Any, Settings]]:
    """Yields the format and the settings of each group's weights.

    Raises:
        UnsupportedError: weights are turned or sparse, or of integers in a way that is not read.
    """
    is_turned = section(settings, "transform_config").get("config_groups")
    if is_turned or section(settings, "sparsity_config").get("format") not in (None, "dense"):
        raise UnsupportedError(
            "config.json has weights of compressed-tensors that are "
            f"{'turned by a transform_config' if is_turned else 'sparse'}, which is not "
            f"supported; {INSTEAD}"
        )
    for group in section(settings, "config_groups").values():
        weights = section(group, "weights")
        if weights:
            form = group.get("format") or settings.get("format")
            if is_integer(weights):
                _check_integers(form, weights)
            yield form, weights


def section(settings: Any, key: str) -> Settings:
    """An object in a configuration; empty for anything else."""
    value = settings.get(key) if isinstance(settings, Mapping) else None
    return value if isinstance(value, Mapping) else {}


def is_integer(weights: Settings) -> bool:
    """Whether weights are integers."""
    return str(weights.get("type", "int")).lower() == "int"


def _check_integers(form: Any, weights: Settings) -> None:
    if form not in FORMATS:
        raise UnsupportedError(
            f"config.json has integers of compressed-tensors in the format {shown(form)}; "
            f"supported are {', '.join(FORMATS)}, so {INSTEAD}"
        )
    bits = weights.get("num_bits", 8)
    if type(bits) is not int or bits not in _BITS:
        raise UnsupportedError(
            f"config.json has integers of compressed-tensors in {shown(bits)} bits; supported are "
            f"{', '.join(map(str, _BITS))}, so {INSTEAD}"
        )
    strategy = _strategy(weights)
    if strategy not in _STRATEGIES:
        raise UnsupportedError(
            "config.json has integers of compressed-tensors whose scales have the strategy "
            f"{shown(strategy)}; supported are {', '.join(_STRATEGIES)}, so {INSTEAD}"
        )


def _strategy(weights: Settings) -> Any:
    strategy, size = weights.get("strategy"), weights.get("group_size")
    if strategy is not None:
        return strategy.lower() if isinstance(strategy, str) else strategy
    return "tensor" if size is None else "channel" if size == -1 else "group"


def _group_size(weights: Settings) -> int | None:
    """Inputs that share a scale; None where all do."""
    if _strategy(weights) != "group":
        return None
    size = weights.get("group_size")
    if type(size) is not int or size < 1:
        raise UnsupportedError(
            f"config.json: group_size is {shown(size)}; expected the inputs that share a scale, a "
            f"whole number above 0, so correct it or {INSTEAD}"
        )
    return size
