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
from edgerun_export.architectures.decoder.fields import (
    number,
    positive,
    said_of_rope,
    says_of_rope,
    section,
)
from edgerun_export.architectures.decoder.layer import Rope
from edgerun_export.architectures.decoder.spec import Config
from edgerun_export.architectures.decoder.storage import HeadRows

_F32 = np.float32
# Of layers of a type, where they are not among the parameters by type.
_THETAS = {"full_attention": "rope_theta", "sliding_attention": "rope_local_base_freq"}
_Parameters = Mapping[str, Any]


def rope(config: Config, head_dim: int, default_theta: float = 10000.0) -> Rope:
    """Returns the rotary embedding that ``config`` describes.

    Reads ``rope_parameters`` (transformers 5) or ``rope_scaling`` with ``rope_theta`` (before); the
    latter where both are there.

    Raises:
        UnsupportedError: a scaling variant without an implementation, or partial rotary.
        CheckpointError: a parameter is missing or out of range.
    """
    parameters = _parameters(config, default_theta)
    if parameters["partial_rotary_factor"] != 1.0 and parameters["rope_type"] != "proportional":
        raise UnsupportedError("partial rotary embeddings are not supported")
    return _for_all_texts(parameters, head_dim)


def rope_of_part(config: Config, head_dim: int, usual_part: float) -> Rope:
    """Returns the rotary embedding of the first elements of a head, as ``partial`` takes it.

    Args:
        config: keys of config.json; ``partial_rotary_factor`` is the part that is turned.
        head_dim: elements of a head.
        usual_part: that part, unless ``config`` has one.

    Raises:
        UnsupportedError: a scaling variant without an implementation.
        CheckpointError: a parameter is missing or out of range.
    """
    parameters = _parameters(config, 10000.0, usual_part)
    return _for_all_texts(parameters, _turned(parameters, head_dim))


def by_type_alone(config: Config, usual: _Parameters) -> Config:
    """What ``rope_of_type`` reads, without keys beside ``rope_parameters``.

    ``usual`` are the parameters by type where there are none.
    """
    given = section(config, "rope_parameters") or usual
    others = ("rope_scaling", "partial_rotary_factor", *_THETAS.values())
    return {**config, **dict.fromkeys(others), "rope_parameters": given}


def rope_of_type(config: Config, kind: str, head_dim: int, default_theta: float) -> Rope:
    """Returns the rotary embedding of the layers of one type.

    Reads ``rope_parameters`` by type (transformers 5), or the keys before: those that all models
    have for ``full_attention``, and ``rope_local_base_freq`` for ``sliding_attention``. Bases of
    the latter stand for those that the former leave out.

    Raises:
        UnsupportedError: a scaling variant without an implementation, or partial rotary.
        CheckpointError: a parameter is missing or out of range.
    """
    by_type = section(config, "rope_parameters")
    own = {**config, "rope_parameters": None}
    if any(isinstance(value, Mapping) for value in by_type.values()):
        added = section(config, "rope_scaling") if kind == "full_attention" else {}
        theta = config.get(_THETAS[kind])
        own |= {"rope_scaling": {**section(by_type, kind), **added}, "rope_theta": theta}
    elif kind == "sliding_attention":
        own |= {"rope_scaling": None, "rope_theta": config.get(_THETAS[kind])}
    return rope(own, head_dim, default_theta)


def long_rope(config: Config, head_dim: int) -> tuple[Rope, int]:
    """Returns the rotary embedding of texts within the original context, and that context.

    Reads what Phi-3 and its successors have (transformers, ``_compute_longrope_parameters``).
    Frequencies are fewer than ``head_dim / 2`` where only a part of a head is turned.

    Raises:
        UnsupportedError: a scaling variant without an implementation.
        CheckpointError: a parameter is missing or out of range.
    """
    parameters = _parameters(config, 10000.0)
    if parameters["rope_type"] in ("su", "yarn"):  # old names of longrope in these models
        parameters["rope_type"] = "longrope"
    turned = _turned(parameters, head_dim)
    return _variant(parameters, turned), min(_long_contexts(parameters))


def partial(
    rope: Rope, head_dim: int, *, interleaved: bool = False
) -> tuple[Rope, HeadRows | None]:
    """Writes a rotation of the first elements of a head as one of all of them.

    Elements i and i + head_dim / 2 are a pair. Rows of query and key heads are put in an order in
    which those that are turned together are pairs, and the other pairs are turned by nothing. What
    the rotation multiplies cosine and sine by goes into the rows that it concerns.

    Args:
        rope: of those elements.
        head_dim: elements of a head.
        interleaved: whether neighbours are turned together, not halves.
    """
    turned = len(rope.inv_freq)
    if turned == head_dim // 2 and not interleaved:
        return rope, None
    elements = np.arange(2 * turned)
    pairs = elements.reshape(turned, 2).T if interleaved else elements.reshape(2, turned)
    return _of_whole_heads(rope, pairs, np.arange(2 * turned, head_dim))


def behind(rope: Rope, head_dim: int, *, interleaved: bool) -> tuple[Rope, HeadRows]:
    """Writes a rotation of the last elements of a head as one of all of them; see ``partial``.

    Args:
        rope: of those elements.
        head_dim: elements of a head.
        interleaved: whether neighbours are turned together, not halves.
    """
    turned = len(rope.inv_freq)
    plain = head_dim - 2 * turned
    elements = np.arange(plain, head_dim)
    pairs = elements.reshape(turned, 2).T if interleaved else elements.reshape(2, turned)
    return _of_whole_heads(rope, pairs, np.arange(plain))


def _of_whole_heads(
    rope: Rope, pairs: NDArray[np.int64], rest: NDArray[np.int64]
) -> tuple[Rope, HeadRows]:
    """A rotation of all of a head, where pairs of stored elements ``[2, turned]`` stand first."""
    order = np.concatenate([pairs, rest.reshape(2, -1)], axis=1)
    factors = np.ones(order.shape, _F32)
    factors[:, : pairs.shape[1]] = rope.attention_factor
    still = np.zeros(len(rest) // 2, _F32)
    return Rope(np.concatenate([rope.inv_freq, still])), HeadRows(order.ravel(), factors.ravel())


def _turned(parameters: _Parameters, head_dim: int) -> int:
    """How many elements of a head are turned, or have frequencies that may be 0."""
    if parameters["rope_type"] == "proportional":
        return head_dim
    turned = int(head_dim * number(parameters, "partial_rotary_factor"))
    if turned > head_dim or turned % 2 or not turned:
        raise CheckpointError(
            f"config.json: of heads of {head_dim} elements {turned} would be turned; expected an "
            "even number, and no more"
        )
    return turned


def _for_all_texts(parameters: _Parameters, turned: int) -> Rope:
    if len(_long_contexts(parameters)) > 1:
        raise UnsupportedError("rotary embeddings that differ for long texts are not supported")
    return _variant(parameters, turned)


def _variant(parameters: _Parameters, turned: int) -> Rope:
    kind = str(parameters["rope_type"])
    if kind not in _VARIANTS:
        raise UnsupportedError(
            f"rope type '{kind}' is not supported; supported are: {', '.join(_VARIANTS)}"
        )
    theta = number(parameters, "rope_theta")
    if theta <= 1:
        raise CheckpointError(f"config.json: 'rope_theta' is {theta:g} and must exceed 1")
    return _VARIANTS[kind](parameters, theta, turned)


def _long_contexts(parameters: _Parameters) -> set[int]:
    """Contexts for which a model has rotary embeddings of their own."""
    whole = positive(parameters, "max_position_embeddings", 2048)
    if parameters["rope_type"] != "longrope":
        return {whole}
    original = positive(parameters, "original_max_position_embeddings", whole)
    same = parameters.get("short_factor") == parameters.get("long_factor")
    return {whole} if same or original >= whole else {whole, original}


def _parameters(config: Config, default_theta: float, usual_part: float = 1.0) -> dict[str, Any]:
    """Brings both spellings to one: a flat mapping with rope_type and rope_theta."""
    config_section = said_of_rope(config)
    if any(isinstance(v, Mapping) for v in config_section.values()):
        raise UnsupportedError("rope parameters that differ between layers are not supported")
    parameters = dict(config_section)
    parameters["rope_type"] = (
        config_section.get("rope_type") or config_section.get("type") or "default"
    )
    if parameters.get("rope_theta") is None:
        parameters["rope_theta"] = config.get("rope_theta") or default_theta
    if parameters.get("partial_rotary_factor") is None:
        part = config.get("partial_rotary_factor")
        parameters["partial_rotary_factor"] = usual_part if part is None else part
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


def _proportional(parameters: _Parameters, theta: float, head_dim: int) -> Rope:
    """With frequencies of the whole head, of which the last pairs have none (Gemma 4)."""
    turned = int(number(parameters, "partial_rotary_factor", 1.0) * head_dim // 2)
    if not 0 < turned <= head_dim // 2:
        raise CheckpointError(
            f"config.json: of the {head_dim // 2} pairs of a head {turned} would be turned; "
            "expected 1 or more, and no more than there are"
        )
    factor = _F32(number(parameters, "factor", 1))
    inv_freq = _default(parameters, theta, head_dim).inv_freq / factor
    inv_freq[turned:] = 0
    return Rope(inv_freq)


def with_llama3(config: Config, theta: float, factor: float) -> Config:
    """The same with the rope of Llama 3.1, lengthened so, where nothing is said of any."""
    if says_of_rope(config):
        return config
    usual = {
        "rope_type": "llama3",
        "rope_theta": theta,
        "factor": factor,
        "high_freq_factor": 4.0,
        "low_freq_factor": 1.0,
        "original_max_position_embeddings": 8192,
    }
    return {**config, "rope_parameters": usual}


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


def _longrope(parameters: _Parameters, theta: float, head_dim: int) -> Rope:
    """With the divisors of texts within the original context (Ding et al. 2024)."""
    divisors = parameters.get("short_factor")
    if not isinstance(divisors, list) or not _are_divisors(divisors, head_dim // 2):
        raise CheckpointError(
            f"config.json: 'short_factor' must be a list of {head_dim // 2} positive numbers"
        )
    scaled = np.array(divisors, _F32) * _position_frequencies(theta, head_dim)
    context = positive(parameters, "original_max_position_embeddings")
    usual = positive(parameters, "max_position_embeddings", context) / context
    factor = number(parameters, "factor", usual)
    if parameters.get("attention_factor") is not None:
        return Rope(_F32(1) / scaled, number(parameters, "attention_factor"))
    growth = math.log(factor) / math.log(context) if factor > 1 and context > 1 else 0.0
    return Rope(_F32(1) / scaled, math.sqrt(1 + growth))


def _are_divisors(values: list[Any], count: int) -> bool:
    numbers = [value for value in values if type(value) in (int, float) and 0 < value < 1e12]
    return len(numbers) == len(values) == count


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
    "dynamic": _default,  # up to max_position_embeddings, where contexts end here
    "linear": _linear,
    "llama3": _llama3,
    "longrope": _longrope,
    "proportional": _proportional,
    "yarn": _yarn,
}
