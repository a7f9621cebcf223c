"""The same checkpoint with another config.json: old spellings, keys added and keys left out."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import TypeAlias

from tools.golden.differential.parts import FULL, SLIDING, Config, Draw, layer_types, without

Variant: TypeAlias = Callable[[Config, Draw], Config | None]

_YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}
_SHAPE = ("partial_rotary_factor", "mrope_section", "mrope_interleaved")
# What stood above ``rope_scaling`` in version 4.
_NAMES = {"rope_theta": "rope_theta", "partial_rotary_factor": "partial_rotary_factor"}
_OWN_NAMES = {
    "gpt_neox": {"rope_theta": "rotary_emb_base", "partial_rotary_factor": "rotary_pct"},
}
# Without these a model would have the size of a released one, or other tensors.
_SIZES = re.compile(
    r"size|dim|rank|width|heads|num_|^n_|mamba_|moe_k|moe_topk|bias|model_type|architectures|dtype"
    r"|_types?$|_id$|_config$"
)
# Without these an export asks for them, or differs from transformers on purpose.
_NEEDED = {"rope_parameters", "routed_scaling_factor", "time_step_min", "use_sliding_window"}
_RATE = 0.15


def variants(config: Config, draw: Draw) -> Iterator[tuple[str, Config]]:
    """All variants of a configuration, by name."""
    inner = "text_config"
    for name, variant in VARIANTS.items():
        changed = variant(config.get(inner, config), draw)
        if changed is not None:
            yield name, {**config, inner: changed} if inner in config else changed


def _single_rope(config: Config) -> Config | None:
    """The rope, unless there is none or one of each kind of layer."""
    rope: Config = config.get("rope_parameters") or {}
    return rope if "rope_theta" in rope else None


def added_scaling(config: Config, draw: Draw) -> Config | None:
    """A ``rope_scaling`` that somebody added beside ``rope_parameters``."""
    rope = _single_rope(config)
    if rope is None:
        return None
    theta = {"rope_theta": rope["rope_theta"]}
    shape = {key: rope[key] for key in _SHAPE if key in rope}
    return {
        **config,
        "rope_parameters": {"rope_type": "default", **theta, **shape},
        "rope_scaling": {**_YARN, **shape, **draw.of({}, theta)},
    }


def version_4(config: Config, draw: Draw) -> Config | None:
    """The rope as version 4 of transformers writes it."""
    rope = _single_rope(config)
    if rope is None:
        return None
    names = _OWN_NAMES.get(config.get("model_type"), _NAMES)
    above: Config = {name: rope[key] for key, name in names.items() if key in rope}
    scaling = without(rope, *names, "rope_type")
    kind = {draw.of("type", "rope_type"): rope["rope_type"]}
    is_plain = rope["rope_type"] == "default" and not scaling
    return {
        **without(config, "rope_parameters"),
        **above,
        "rope_scaling": None if is_plain else {**kind, **scaling},
    }


def types_of_layers(config: Config, draw: Draw) -> Config | None:
    """``layer_types`` where there is a window and no word of layers."""
    if not config.get("sliding_window") or "layer_types" in config:
        return None
    return {**config, "layer_types": layer_types(draw, config, SLIDING, FULL)}


def left_out(config: Config, draw: Draw) -> Config | None:
    """Some keys less, whose defaults count then."""
    droppable = (key for key in sorted(config) if not _SIZES.search(key) and key not in _NEEDED)
    gone = [key for key in droppable if draw.chance(_RATE)]
    return without(config, *gone) if gone else None


VARIANTS: dict[str, Variant] = {
    "added-scaling": added_scaling,
    "left-out": left_out,
    "types-of-layers": types_of_layers,
    "version-4": version_4,
}
