"""What a model recommends for generating: ``generation_config.json``."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from edgerun.errors import BundleError, SamplingError

Check: TypeAlias = Callable[[str, Any], Any]
DRAWING = ("typical_p",)  # would keep greedy choice from the likeliest token
# Used when a model recommends none of the ways to draw: at a temperature of 1 small models stray.
FALLBACK = {"temperature": 0.7, "top_p": 0.95}
WAYS_TO_DRAW = frozenset(("temperature", "top_k", "top_p", "min_p", "typical_p"))
KEEPS_ALL = {"top_k": -1}  # as vLLM writes it

logger = logging.getLogger(__name__)


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


def sampling_defaults(
    generation_config: Mapping[str, Any], checks: Mapping[str, Check], source: object
) -> dict[str, Any]:
    """Picks what a model recommends for sampling; a warning names what cannot be used.

    ``do_sample: false`` means greedy, as in transformers: a temperature of 0, whatever the file
    says of it, with penalties as in sampling. What merely keeps likely tokens is passed on for
    callers who choose a temperature themselves.

    Args:
        generation_config: what the file holds.
        checks: by the names of sampling options, which are those of the file, what returns a value
            as the option has it, or raises SamplingError.
        source: the file, for warnings.
    """
    recommended = {}
    for name, check in checks.items():
        value = generation_config.get(name)
        if value is None or value == KEEPS_ALL.get(name):
            continue
        try:
            is_whole = isinstance(value, float) and value.is_integer()  # some write 50.0
            recommended[name] = check(name, int(value) if is_whole else value)
        except SamplingError as error:
            logger.warning("%s: %s; this recommendation is left out", source, error)
    if generation_config.get("do_sample") is False:
        greedy = {name: value for name, value in recommended.items() if name not in DRAWING}
        return {**greedy, "temperature": 0.0}
    if WAYS_TO_DRAW.isdisjoint(recommended):
        return {**FALLBACK, **recommended}
    return recommended


def eos_ids(generation_config: Mapping[str, Any]) -> tuple[int, ...]:
    """Returns ``eos_token_id``, which may be one id or a list."""
    value = generation_config.get("eos_token_id")
    ids = value if isinstance(value, list) else [value]
    return tuple(id_ for id_ in ids if type(id_) is int and id_ >= 0)
