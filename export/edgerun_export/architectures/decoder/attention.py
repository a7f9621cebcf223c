"""Which projections attention consists of."""

from __future__ import annotations

from typing import TYPE_CHECKING

from edgerun_export.architectures.decoder.layer import Projection

if TYPE_CHECKING:
    from edgerun_export.architectures.decoder.spec import DecoderSpec


def attention_projections(spec: DecoderSpec, layer: int) -> dict[str, Projection]:
    """The projections of a layer's attention, by their short names."""
    part, width = spec.layers[layer], spec.head_dim_of(layer)
    queries = spec.num_heads_of(layer) * width
    keys = spec.num_kv_heads_of(layer) * width
    latent, hidden = spec.latent, spec.hidden_size
    shapes: dict[str, tuple[int, int]] = {}
    of_queries = of_keys = hidden
    if latent is not None:
        of_keys = latent.rank
        shapes |= {"kv_a_proj": (latent.rank, hidden), "k_rope_proj": (spec.head_dim, hidden)}
    if latent is not None and latent.query_rank is not None:
        of_queries = latent.query_rank
        shapes["q_a_proj"] = (latent.query_rank, hidden)
    shapes |= {
        "q_proj": (queries, of_queries),
        "attention_gate": (spec.num_heads_of(layer) if spec.gates_by_head else queries, hidden),
        "k_proj": (keys, of_keys),
        "v_proj": (keys, of_keys),
        "o_proj": (hidden, queries),
    }
    absent = {"v_proj"} if part.keys_are_values else set()
    absent |= set() if part.kv_source is None else {"k_proj", "v_proj"}
    absent |= set() if spec.gates_attention else {"attention_gate"}
    return {
        name: Projection(name, f"self_attn.{name}", *shape, name in spec.biases)
        for name, shape in shapes.items()
        if name not in absent
    }
