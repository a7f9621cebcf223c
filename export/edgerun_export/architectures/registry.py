"""Finds an architecture by the checkpoint's ``model_type``: the file of that name."""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import cache
from typing import TypeAlias

from edgerun.discovery import entries
from edgerun.errors import CheckpointError, UnsupportedError
from edgerun_export.architectures.aliases import with_own_names
from edgerun_export.architectures.decoder.biases import with_stored_biases
from edgerun_export.architectures.decoder.layer import Experts
from edgerun_export.architectures.decoder.missing import reason
from edgerun_export.architectures.decoder.multimodal import Multimodal
from edgerun_export.architectures.decoder.spec import NETWORK, Config, DecoderSpec

# As many as a checkpoint may have: what a few numbers say must be compared with what is there.
_MAX_EXPERT_TENSORS = 1 << 17
Architecture: TypeAlias = Callable[[Config], DecoderSpec] | Multimodal
_ROOMS = (
    "",
    ".deepseek",
    ".dense",
    ".experts",
    ".gemma",
    ".layer_norms",
    ".linear",
    ".multimodal",
    ".qwen_vl",
    ".scaled",
    ".sigmoids",
    ".state_spaces",
)


@cache
def _architectures() -> dict[str, Architecture]:
    rooms = [f"edgerun_export.architectures{room}" for room in _ROOMS]
    return dict(sorted(item for room in rooms for item in entries(room, "ARCHITECTURE").items()))


def architecture_names() -> list[str]:
    """The supported values of ``model_type``."""
    return list(_architectures())


def describe(config: Config, tensors: Collection[str] = ()) -> DecoderSpec:
    """Describes the decoder that ``config`` (the keys of config.json) stands for.

    Args:
        config: keys of config.json.
        tensors: names of the checkpoint's tensors; where ``config`` leaves open which projections
            have biases, or where the text model lies, they decide.

    Raises:
        UnsupportedError: no such architecture, or a variant of it without an implementation.
        CheckpointError: config.json is inconsistent.
    """
    name, architecture = _named(config)
    if isinstance(architecture, Multimodal):
        spec = architecture.describe(name, config, tensors)
    else:
        spec = architecture(with_own_names(name, config))
        spec = with_stored_biases(spec, config, tensors)
    _check_experts(spec)
    return spec


def _check_experts(spec: DecoderSpec) -> None:
    parts = [layer.feed_forward for layer in spec.layers]
    count = sum(part.count for part in parts if isinstance(part, Experts))
    if count * len(NETWORK) > _MAX_EXPERT_TENSORS:
        raise CheckpointError(
            f"config.json: {spec.num_layers} layers have {count} experts together; expected "
            f"{_MAX_EXPERT_TENSORS // len(NETWORK)} at most"
        )


def text_keys(config: Config) -> Config:
    """The keys of config.json that a model would have if its text model were all there is.

    Raises:
        UnsupportedError: no such architecture.
        CheckpointError: config.json is inconsistent.
    """
    name, architecture = _named(config)
    return architecture.text_keys(name, config) if isinstance(architecture, Multimodal) else config


def _named(config: Config) -> tuple[str, Architecture]:
    name, architectures = config.get("model_type"), _architectures()
    if name is None:
        raise CheckpointError("config.json names no model_type, so the architecture is unknown")
    module = name.replace("-", "_") if isinstance(name, str) else ""  # the first LFM2-VL: lfm2-vl
    if module not in architectures:
        supported = ", ".join(architectures)
        raise UnsupportedError(
            f"architecture '{name}' is not supported{reason(name)}; supported are: {supported}"
        )
    return module, architectures[module]
