"""Rotary frequencies of the scaling variants, computed as transformers' ``modeling_rope_utils``.

All arithmetic is float32 in the order used there, so that positions far out agree to the bit.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgerun.errors import CheckpointError, UnsupportedError
from edgerun_export.architectures.fields import number, positive, section
from edgerun_export.architectures.spec import Config, Rope

_F32 = np.float32
_Parameters = Mapping[str, Any]


def rope(config: Config, head_dim: int, default_theta: float = 10000.0) -> Rope:
    """Returns the rotary embedding that ``config`` describes.

    Reads ``rope_parameters`` (transformers 5) or ``rope_scaling`` with ``rope_theta`` (before).

    Raises:
        UnsupportedError: a scaling variant without an implementation, or partial rotary.
        CheckpointError: a parameter is missing or out of range.
    """
    parameters = _parameters(config, default_theta)
    kind = str(parameters["rope_type"])
    if kind not in _VARIANTS:
        raise UnsupportedError(
            f"rope type '{kind}' is not supported; supported are: {', '.join(_VARIANTS)}"
        )
    if parameters.get("partial_rotary_factor", 1.0) != 1.0:
        raise UnsupportedError("partial rotary embeddings are not supported")
    theta = number(parameters, "rope_theta")
    if theta <= 1:
        raise CheckpointError(f"config.json: 'rope_theta' is {theta:g} and must exceed 1")
    return _VARIANTS[kind](parameters, theta, head_dim)


def _parameters(config: Config, default_theta: float) -> dict[str, Any]:
    """Brings both spellings to one: a flat mapping with rope_type and rope_theta."""
    config_section = section(config, "rope_parameters") or section(config, "rope_scaling")
    if any(isinstance(v, Mapping) for v in config_section.values()):
        raise UnsupportedError("rope parameters that differ between layers are not supported")
    parameters = dict(config_section)
    parameters["rope_type"] = (
        config_section.get("rope_type") or config_section.get("type") or "default"
    )
    if parameters.get("rope_theta") is None:
        parameters["rope_theta"] = config.get("rope_theta") or default_theta
    if parameters.get("partial_rotary_factor") is None:
        parameters["partial_rotary_factor"] = config.get("partial_rotary_factor") or 1.0
    original = config.get("original_max_position_embeddings")
    if original is None:
        original = parameters.get("original_max_position_embeddings")
    parameters["original_max_position_embeddings"] = (
        config.get("max_position_embeddings") if original is None else original
    )
    parameters["max_position_embeddings"] = config.get("max_position_embeddings")
    return parameters


def _position_frequencies(theta: float, head_dim: int) -> NDArray[np.float32]:
    exponents = np.arange(0, head_dim, 2, dtype=_F32) / _F32(head_dim)
    frequencies: NDArray[np.float32] = np.power(_F32(theta), exponents)
    return frequencies


def _default(parameters: _Parameters, theta: float, head_dim: int) -> Rope:
    return Rope(_F32(1) / _position_frequencies(theta, head_dim))


def _linear(parameters: _Parameters, theta: float, head_dim: int) -> Rope:
    factor = _F32(number(parameters, "factor"))
    return Rope(_default(parameters, theta, head_dim).inv_freq / factor)


def _llama3(parameters: _Parameters, theta: float, head_dim: int) -> Rope:
    factor = _F32(number(parameters, "factor"))
    low, high = number(parameters, "low_freq_factor"), number(parameters, "high_freq_factor")
    if high <= low:
        raise CheckpointError(
            f"config.json: high_freq_factor {high} must exceed low_freq_factor {low}"
        )
    context = positive(parameters, "original_max_position_embeddings")
    inv_freq = _default(parameters, theta, head_dim).inv_freq
    wavelength = _F32(2 * math.pi) / inv_freq
    long_waves = wavelength > _F32(context / low)
    short_waves = wavelength < _F32(context / high)
    scaled = np.where(long_waves, inv_freq / factor, inv_freq)
    smooth = (_F32(context) / wavelength - _F32(low)) / _F32(high - low)
    blended = (_F32(1) - smooth) * scaled / factor + smooth * scaled
    return Rope(np.where(long_waves | short_waves, scaled, blended).astype(_F32))


def _yarn(parameters: _Parameters, theta: float, head_dim: int) -> Rope:
    context = positive(parameters, "original_max_position_embeddings")
    factor = _yarn_factor(parameters, context)
    frequencies = _position_frequencies(theta, head_dim)
    low, high = _yarn_range(parameters, theta, head_dim, context)
    ramp = (np.arange(head_dim // 2, dtype=_F32) - _F32(low)) / _F32(high - low)
    extrapolated = _F32(1) - np.clip(ramp, _F32(0), _F32(1))
    inv_freq = (
        _F32(1) / (_F32(factor) * frequencies) * (_F32(1) - extrapolated)
        + _F32(1) / frequencies * extrapolated
    )
    return Rope(inv_freq.astype(_F32), _yarn_attention(parameters, factor))


def _yarn_factor(parameters: _Parameters, context: int) -> float:
    if parameters.get("factor") is not None:
        return number(parameters, "factor")
    return positive(parameters, "max_position_embeddings") / context


def _yarn_attention(parameters: _Parameters, factor: float) -> float:
    """Attention temperature (Peng et al. 2023, equation 22, and DeepSeek's two mscale keys)."""
    if parameters.get("attention_factor") is not None:
        return number(parameters, "attention_factor")
    if factor <= 1:
        return 1.0
    log = 0.1 * math.log(factor)
    if parameters.get("mscale") and parameters.get("mscale_all_dim"):
        scale, all_dims = number(parameters, "mscale"), number(parameters, "mscale_all_dim")
        return (scale * log + 1.0) / (all_dims * log + 1.0)
    return log + 1.0


def _yarn_range(
    parameters: _Parameters, theta: float, head_dim: int, context: int
) -> tuple[float, float]:
    """First and last dimension of the ramp between extrapolation and interpolation."""

    def dimension(rotations: float) -> float:
        return head_dim * math.log(context / (rotations * 2 * math.pi)) / (2 * math.log(theta))

    low = dimension(number(parameters, "beta_fast", 32))
    high = dimension(number(parameters, "beta_slow", 1))
    if parameters.get("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, head_dim - 1)
    return low, high + 0.001 if low == high else high


_VARIANTS: dict[str, Callable[[_Parameters, float, int], Rope]] = {
    "default": _default,
    "linear": _linear,
    "llama3": _llama3,
    "yarn": _yarn,
}
