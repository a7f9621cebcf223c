"""Causal attention to what the cache holds of an earlier layer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from edgerun.ops.attention import OP as ATTENTION
from edgerun.ops.attention import attend
from edgerun.ops.base import F32, Example, Op, normal, rows
from edgerun.state import Batch, SequenceStore
from edgerun.state.spec import AttentionState


def shared_attention(
    q: F32,
    *,
    batch: Batch,
    cache: SequenceStore,
    layer: int,
    num_heads: int,
    num_kv_heads: int,
    head_dim: int,
    scale: float,
    window: int,
    softcap: float,
) -> F32:
    """Attends to the keys and values that ``layer``, an earlier one, has written for these rows.

    Otherwise as ``attention``: a row sees its own position and those before, in the same window,
    and scores may have a bound.
    Source: Brandon et al. 2024, cross-layer attention.
    """
    sizes = (num_heads, num_kv_heads, head_dim)
    return attend(q, batch, cache, layer, sizes, np.float32(scale), window, softcap)


def _reads(attributes: Mapping[str, Any]) -> AttentionState:
    assert ATTENTION.state is not None
    state = ATTENTION.state(attributes)
    assert isinstance(state, AttentionState)
    return state


def _examples() -> list[Example]:
    examples = []
    shapes = [(4, 2, 16, 0, ((0, 5),)), (3, 1, 8, 7, ((70, 1), (5, 1))), (6, 2, 64, 0, ((60, 9),))]
    for heads, kv_heads, head_dim, window, parts in shapes:
        q = normal((sum(new for _, new in parts), heads * head_dim), 1)
        sizes = {"num_heads": heads, "num_kv_heads": kv_heads, "head_dim": head_dim}
        attributes = {
            "layer": 0,
            **sizes,
            "scale": head_dim**-0.5,
            "window": window,
            "softcap": 0.0,
        }
        examples.append(Example({"q": q}, attributes, parts))
        asked = {"q": q[: len(parts)]}
        examples.append(Example(asked, attributes, parts, selected=("q",)))
        examples.append(Example({"q": q}, {**attributes, "scale": 1.0, "softcap": 2.0}, parts))
    return examples


OP = Op(
    inputs=(rows("q", "num_heads*head_dim"),),
    outputs=(rows("out", "num_heads*head_dim"),),
    define=shared_attention,
    attributes=ATTENTION.attributes,
    divides=ATTENTION.divides,
    reads=_reads,
    context=("batch", "cache"),
    model_sizes=ATTENTION.model_sizes,
    work=ATTENTION.work,
    tolerance=ATTENTION.tolerance,
    examples=_examples,
)
