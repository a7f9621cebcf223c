"""What a model recommends for generating: ``generation_config.json``."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from edgerun.errors import BundleError

LISTS = ("dry_sequence_breakers",)  # what may be a list of texts
DRAWING = ("typical_p",)  # would keep greedy choice from the likeliest token
# Used when a model recommends nothing.
FALLBACK = {"temperature": 0.7, "top_p": 0.95}


def read_json_object(name: str, text: str | None) -> dict[str, Any]:
    """Parses a JSON file that must hold an object; a missing file is an empty one.

    Raises:
        BundleError: it is not JSON or not an object.
    """
    if text is None:
        return {}
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise BundleError(f"{name} is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise BundleError(f"{name} holds {type(value).__name__}; expected an object")
    return value


def sampling_defaults(generation_config: Mapping[str, Any], names: Iterable[str]) -> dict[str, Any]:
    """Picks what a model recommends for sampling: numbers, and lists of texts.

    ``do_sample: false`` means greedy, as in transformers: a temperature of 0, whatever the file
    says of it, with penalties as in sampling. What merely keeps likely tokens is passed on for
    callers who choose a temperature themselves.

    Args:
        generation_config: what the file holds.
        names: sampling parameters, named there as here.
    """
    recommended = {
        name: generation_config[name]
        for name in names
        if _is_value(name, generation_config.get(name))
    }
    if generation_config.get("do_sample") is False:
        greedy = {name: value for name, value in recommended.items() if name not in DRAWING}
        return {**greedy, "temperature": 0.0}
    return recommended or dict(FALLBACK)


def _is_value(name: str, value: object) -> bool:
    if isinstance(value, list):
        return name in LISTS and all(isinstance(item, str) for item in value)
    return isinstance(value, int | float)


def eos_ids(generation_config: Mapping[str, Any]) -> tuple[int, ...]:
    """Returns ``eos_token_id``, which may be one id or a list."""
    value = generation_config.get("eos_token_id")
    ids = value if isinstance(value, list) else [value]
    return tuple(id_ for id_ in ids if type(id_) is int and id_ >= 0)
