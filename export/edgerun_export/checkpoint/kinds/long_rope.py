"""Rotary embeddings with divisors for texts within the original context, and for longer ones."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from edgerun.errors import CheckpointError
from edgerun_export.checkpoint.base import F32
from edgerun_export.checkpoint.kinds.keys import Keys, short_float

# These stand beside the divisors that any model may have.
LONG_FACTORS, SHORT_FACTORS = "rope_factors_long.weight", "rope_factors_short.weight"


def long_rope(
    keys: Keys, config: Mapping[str, Any], rope_factors: Mapping[str, F32]
) -> dict[str, Any]:
    """What the configuration says of them; nothing where a file has none.

    Raises:
        CheckpointError: it has some of one kind alone, or none where it says that it has some.
    """
    divisors = [rope_factors.get(name) for name in (SHORT_FACTORS, LONG_FACTORS)]
    short, long = (None if each is None else each.reshape(-1).tolist() for each in divisors)
    if short is None and long is None:
        if keys.text("rope.scaling.type", "") == "longrope":
            raise CheckpointError(
                "metadata 'rope.scaling.type' is longrope, and the file has neither "
                f"'{SHORT_FACTORS}' nor '{LONG_FACTORS}'; expected both, so convert the model again"
            )
        return {}
    if short is None or long is None:
        raise CheckpointError(f"expected both '{SHORT_FACTORS}' and '{LONG_FACTORS}', or neither")
    scaling: dict[str, Any] = {
        "rope_type": "longrope",
        "short_factor": short,
        "long_factor": long,
    }
    if keys.has("rope.scaling.attn_factor"):
        scaling["attention_factor"] = short_float(keys.positive("rope.scaling.attn_factor"))
    original = "rope.scaling.original_context_length"
    context = keys.size(original, config["max_position_embeddings"])
    return {"rope_scaling": scaling, "original_max_position_embeddings": context}
