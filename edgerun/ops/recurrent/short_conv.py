"""A gated convolution over the last few tokens of a sequence."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from edgerun.ops.base import (
    COUNT,
    F32,
    MAX_SIZE,
    Attribute,
    Example,
    Op,
    normal,
    rows,
    rows_of,
    vector,
)
from edgerun.state import Batch, SequenceStore
from edgerun.state.spec import AttentionState, attention_name

MAX_TAPS = 64


def short_conv(
    gate: F32,
    value: F32,
    out: F32,
    taps: F32,
    *,
    batch: Batch,
    cache: SequenceStore,
    layer: int,
    width: int,
    count: int,
) -> F32:
    """Writes ``gate * value`` into the cache, then sums the last ``count`` of it times ``taps``.

    A row at position p gets ``out * (taps[0] * z[p - count + 1] + ... + taps[count - 1] * z[p])``,
    added up from the left, with ``z`` what its sequence has written and zeros before position 0
    (LFM2; Liquid AI 2025). ``taps`` is ``[count, width]``, flattened. Where ``out`` is there for
    wanted logits only, so are results.
    """
    name, inputs = attention_name(layer), (gate * value)[:, None]
    weights, nothing = taps.reshape(count, width), np.empty((1, 1, 0), np.float32)
    for row in range(batch.rows):
        block = inputs[row : row + 1], nothing
        cache.write_block(name, int(batch.sequences[row]), int(batch.positions[row]), block)
    results = np.empty_like(out)
    for place, row in enumerate(rows_of(out, batch)):
        position = int(batch.positions[row])
        first = max(0, position - count + 1)
        seen, _ = cache.read_block(name, int(batch.sequences[row]), first, position + 1)
        total = np.zeros(width, np.float32)
        for past, weight in zip(seen[:, 0], weights[count - len(seen) :], strict=True):
            total += past * weight
        results[place] = out[place] * total
    return results


def _state(attributes: Mapping[str, Any]) -> AttentionState:
    """A vector for each token, exact: small differences would add up over a text."""
    return AttentionState(
        name=attention_name(attributes["layer"]),
        kv_heads=1,
        key_dim=attributes["width"],
        value_dim=0,
        window=attributes["count"],
        codec="fp32",
    )


def _examples() -> list[Example]:
    examples = []
    shapes = [(3, 64, ((0, 5),)), (3, 20, ((70, 1), (1, 2), (5, 1))), (4, 130, ((62, 9),))]
    for count, width, parts in shapes:
        height = sum(new for _, new in parts)
        names = ("gate", "value", "out")
        values = {name: normal((height, width), seed) for seed, name in enumerate(names)}
        values["taps"] = normal((count * width,), 7)
        attributes = {"layer": 0, "width": width, "count": count}
        examples.append(Example(values, attributes, parts))
        asked = {**values, "out": values["out"][: len(parts)]}
        examples.append(Example(asked, attributes, parts, selected=("out",)))
    return examples


OP = Op(
    inputs=(
        rows("gate", "width", every_row=True),
        rows("value", "width", every_row=True),
        rows("out", "width"),
        vector("taps", "count*width"),
    ),
    outputs=(rows("result", "width"),),
    define=short_conv,
    attributes={
        "layer": Attribute(int, 0, MAX_SIZE),
        "width": COUNT,
        "count": Attribute(int, 1, MAX_TAPS),
    },
    state=_state,
    context=("batch", "cache"),
    model_sizes={"hidden_size": "width"},
    examples=_examples,
)
