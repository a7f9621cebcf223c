"""Causal attention to what the cache holds, which the rows join first."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from edgerun.ops.base import (
    COUNT,
    F32,
    MAX_SIZE,
    SMALLEST_NORMAL,
    Attribute,
    Example,
    NBytes,
    Op,
    Sizes,
    Work,
    normal,
    rows,
    rows_of,
    vector,
)
from edgerun.state import Batch, SequenceStore
from edgerun.state.spec import AttentionState, attention_name


def attention(
    q: F32,
    k: F32,
    v: F32,
    sinks: F32 | None = None,
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
    """Writes keys and values into the cache, then attends causally to what it holds.

    A row at position p sees positions ``max(0, p - window + 1) .. p`` of its sequence (all up to
    p when ``window`` is 0), read back from the cache in its storage type. Query heads share
    key/value heads in consecutive groups (Ainslie et al. 2023). A head with a sink has one more
    score, which takes its share of the weights and adds nothing (gpt-oss; Xiao et al. 2024).
    Scores ``s`` become ``softcap * tanh(s / softcap)`` unless ``softcap`` is 0 (Gemma Team 2024,
    Gemma 2, section 2).
    Where queries are there for wanted logits only, so are results.
    """
    name = attention_name(layer)
    keys, values = (part.reshape(-1, num_kv_heads, head_dim) for part in (k, v))
    for row in range(batch.rows):
        sequence, position = int(batch.sequences[row]), int(batch.positions[row])
        block = keys[row : row + 1], values[row : row + 1]
        cache.write_block(name, sequence, position, block)
    sizes = (num_heads, num_kv_heads, head_dim)
    return attend(q, batch, cache, layer, sizes, np.float32(scale), window, softcap, sinks)


def attend(
    q: F32,
    batch: Batch,
    cache: SequenceStore,
    layer: int,
    sizes: tuple[int, int, int],
    scale: np.float32,
    window: int,
    softcap: float,
    sinks: F32 | None = None,
) -> F32:
    """Attends to what the cache holds of a layer; see ``attention``.

    ``sizes`` are the query heads, the key heads and the elements of each.
    """
    num_heads, num_kv_heads, head_dim = sizes
    name = attention_name(layer)
    out = np.empty((len(q), num_heads, head_dim), np.float32)
    queries = q.reshape(-1, num_kv_heads, num_heads // num_kv_heads, head_dim)
    for place, row in enumerate(rows_of(q, batch)):
        heads, position = queries[place], int(batch.positions[row])
        first = max(0, position - window + 1) if window else 0
        slot = int(batch.sequences[row])
        past_k, past_v = cache.read_block(name, slot, first, position + 1)
        scores = np.einsum("hgd,thd->hgt", heads, past_k) * scale
        if softcap:
            scores = np.tanh(scores / np.float32(softcap)) * np.float32(softcap)
        if sinks is not None:
            scores = np.concatenate([scores, sinks.reshape(*scores.shape[:2], 1)], axis=-1)
        weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
        weights /= weights.sum(axis=-1, keepdims=True)
        weights = weights[..., : len(past_v)]
        out[place] = np.einsum("hgt,thd->hgd", weights, past_v).reshape(num_heads, head_dim)
    return out.reshape(q.shape)


def _state(attributes: Mapping[str, Any]) -> AttentionState:
    return AttentionState(
        name=attention_name(attributes["layer"]),
        kv_heads=attributes["num_kv_heads"],
        key_dim=attributes["head_dim"],
        value_dim=attributes["head_dim"],
        window=attributes["window"],
    )


def _work(sizes: Sizes, nbytes: NBytes) -> Work:
    return Work(cached_macs=2 * sizes["num_heads"] * sizes["head_dim"])


def _examples() -> list[Example]:
    examples = []
    shapes = [(4, 2, 16, 0, ((0, 5),)), (3, 1, 8, 7, ((70, 1), (5, 1))), (6, 2, 64, 0, ((60, 9),))]
    for heads, kv_heads, head_dim, window, parts in shapes:
        height = sum(new for _, new in parts)
        counts = {"q": heads, "k": kv_heads, "v": kv_heads}
        values = {
            name: normal((height, count * head_dim), seed)
            for seed, (name, count) in enumerate(counts.items())
        }
        sizes = {"num_heads": heads, "num_kv_heads": kv_heads, "head_dim": head_dim}
        attributes = {
            "layer": 0,
            **sizes,
            "scale": head_dim**-0.5,
            "window": window,
            "softcap": 0.0,
        }
        examples.append(Example(values, attributes, parts))
        asked = {**values, "q": values["q"][: len(parts)]}
        examples.append(Example(asked, attributes, parts, selected=("q",)))
        # Sinks below all scores, among them and above them, so that nearly nothing is left.
        sinks = np.linspace(-30, 30, heads).astype(np.float32)
        examples.append(Example({**values, "sinks": sinks}, attributes, parts))
        # Scores reach several times the bound.
        bounded = {**attributes, "scale": 1.0, "softcap": 2.0}
        examples.append(Example(values, bounded, parts))
    return examples


OP = Op(
    inputs=(
        rows("q", "num_heads*head_dim"),
        rows("k", "num_kv_heads*head_dim", every_row=True),
        rows("v", "num_kv_heads*head_dim", every_row=True),
        vector("sinks", "num_heads", optional=True),
    ),
    outputs=(rows("out", "num_heads*head_dim"),),
    define=attention,
    attributes={
        "layer": Attribute(int, 0, MAX_SIZE),
        "num_heads": COUNT,
        "num_kv_heads": COUNT,
        "head_dim": COUNT,
        "scale": Attribute(float),
        "window": Attribute(int, 0, MAX_SIZE),
        # Kernels multiply it by a small number and divide by it.
        "softcap": Attribute(float, SMALLEST_NORMAL, 1e30, or_zero=True),
    },
    divides=(("num_kv_heads", "num_heads"),),
    state=_state,
    context=("batch", "cache"),
    model_sizes={name: name for name in ("num_heads", "num_kv_heads", "head_dim")},
    work=_work,
    tolerance=3e-6,
    examples=_examples,
)
