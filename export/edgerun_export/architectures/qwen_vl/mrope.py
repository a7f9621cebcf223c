"""M-RoPE, where all axes have the position of a token, as in text: rope as in other models.

Each pair of a head is turned by the position on one of three axes, in sections (Qwen2-VL, 2024,
section 2.1) or in turns (Qwen3-VL). Which pair belongs to which axis changes nothing if all three
positions are equal (transformers, ``recomposition_frequencies``).
"""

from __future__ import annotations

from collections.abc import Mapping

from edgerun_export.architectures.decoder.spec import Config

_KEYS = ("rope_parameters", "rope_scaling")


def of_text(config: Config) -> Config:
    """The same configuration, with the rope that text has.

    ``mrope`` is the name of the default with sections (transformers,
    ``configuration_qwen2_5_vl.py``, ``convert_rope_params_to_dict``); others have sections, too.
    """
    parts = {
        key: {**part, "rope_type": "default"}
        for key in _KEYS
        if isinstance(part := config.get(key), Mapping) and _type(part) == "mrope"
    }
    return {**config, **parts}


def _type(part: Config) -> object:
    return part.get("rope_type") or part.get("type")
