"""Finds an architecture by the checkpoint's ``model_type``: a module here with ``describe``."""

from __future__ import annotations

from collections.abc import Callable, Container

from edgerun.errors import CheckpointError, UnsupportedError
from edgerun_export.architectures import bitnet, llama, mistral, qwen2, qwen3
from edgerun_export.architectures.biases import with_stored_biases
from edgerun_export.architectures.spec import Config, DecoderSpec

_DESCRIBE: dict[str, Callable[[Config], DecoderSpec]] = {
    "llama": llama.describe,
    "mistral": mistral.describe,
    "qwen2": qwen2.describe,
    "qwen3": qwen3.describe,
    "bitnet": bitnet.describe,
}


def architecture_names() -> list[str]:
    """The supported values of ``model_type``."""
    return list(_DESCRIBE)


def describe(config: Config, tensors: Container[str] = ()) -> DecoderSpec:
    """Describes the decoder that ``config`` (the keys of config.json) stands for.

    Args:
        config: keys of config.json.
        tensors: names of the checkpoint's tensors; where ``config`` leaves open which projections
            have biases, they decide.

    Raises:
        UnsupportedError: no such architecture, or a variant of it without an implementation.
        CheckpointError: config.json is inconsistent.
    """
    name = config.get("model_type")
    if name is None:
        raise CheckpointError("config.json names no model_type, so the architecture is unknown")
    if not isinstance(name, str) or name not in _DESCRIBE:
        known = ", ".join(_DESCRIBE)
        raise UnsupportedError(f"architecture '{name}' is not supported; supported are: {known}")
    return with_stored_biases(_DESCRIBE[name](config), config, tensors)
