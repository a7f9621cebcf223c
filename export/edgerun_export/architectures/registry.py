"""Finds an architecture by the checkpoint's ``model_type``: the file of that name."""

from __future__ import annotations

from collections.abc import Callable, Container
from functools import cache

from edgerun.discovery import entries
from edgerun.errors import CheckpointError, UnsupportedError
from edgerun_export.architectures.decoder.biases import with_stored_biases
from edgerun_export.architectures.decoder.missing import reason
from edgerun_export.architectures.decoder.spec import Config, DecoderSpec


@cache
def _architectures() -> dict[str, Callable[[Config], DecoderSpec]]:
    rooms = [f"edgerun_export.architectures{room}" for room in ("", ".experts", ".gemma")]
    return dict(sorted(item for room in rooms for item in entries(room, "ARCHITECTURE").items()))


def architecture_names() -> list[str]:
    """The supported values of ``model_type``."""
    return list(_architectures())


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
    name, architectures = config.get("model_type"), _architectures()
    if name is None:
        raise CheckpointError("config.json names no model_type, so the architecture is unknown")
    if not isinstance(name, str) or name not in architectures:
        supported = ", ".join(architectures)
        raise UnsupportedError(
            f"architecture '{name}' is not supported{reason(name)}; supported are: {supported}"
        )
    return with_stored_biases(architectures[name](config), config, tensors)
