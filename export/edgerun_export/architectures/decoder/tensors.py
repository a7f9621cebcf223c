"""Which tensors a decoder consists of, and which norms; what sizes all of its layers share."""

from __future__ import annotations

from typing import TYPE_CHECKING

from edgerun_export.architectures.decoder.layer import Dense, Experts
from edgerun_export.architectures.decoder.storage import HEAD_BIAS

if TYPE_CHECKING:
    from edgerun_export.architectures.decoder.spec import DecoderSpec
    from edgerun_export.architectures.decoder.streams import AltUp, Laurel


def tensors_of(spec: DecoderSpec) -> dict[str, tuple[int, ...]]:
    """Every tensor that a decoder reads, with its shape."""
    shapes: dict[str, tuple[int, ...]] = {
        spec.embedding_weight: (spec.vocab_size, spec.hidden_size),
        spec.final_norm_weight: (spec.hidden_size,),
        spec.head_weight: (spec.vocab_size, spec.hidden_size),
    }
    if spec.norm_biases:
        shapes[spec.final_norm_bias] = (spec.hidden_size,)
    if spec.head_bias:
        shapes[HEAD_BIAS] = (spec.vocab_size,)
    if spec.per_layer is not None:
        shapes |= spec.per_layer.tensors(spec.num_layers, spec.hidden_size, spec.vocab_size)
    if spec.altup is not None:
        shapes |= spec.altup.tensors(spec.hidden_size)
    for layer in range(spec.num_layers):
        prefix = f"model.layers.{layer}"
        shapes |= {f"{prefix}.{path}": shape for path, shape in _of_layer(spec, layer).items()}
    return shapes


def _of_layer(spec: DecoderSpec, layer: int) -> dict[str, tuple[int, ...]]:
    shapes: dict[str, tuple[int, ...]] = {
        f"{path}.{kind}": (width,)
        for path, width in spec.norms(layer).items()
        for kind in spec.norm_kinds(path)
    }
    if spec.layer_scale is not None:
        shapes[spec.layer_scale] = (1,)
    if spec.altup is not None:
        shapes |= spec.altup.layer_tensors(spec.hidden_size)
    conv, matrices = spec.layers[layer].conv, spec.matrices(layer)
    if conv is not None:
        shapes[conv.weight] = (spec.hidden_size, 1, conv.taps)
    if matrices is not None:
        shapes |= matrices.tensors()
    if spec.sinks is not None and spec.attends(layer):
        shapes[spec.sinks] = (spec.num_heads_of(layer),)
    part = spec.layers[layer].feed_forward
    if isinstance(part, Experts) and part.selection_bias:
        ones = (1,) * (part.selection_bias_axes - 1)
        shapes[part.selection_bias] = (*ones, part.count)
    if isinstance(part, Dense) and part.curve is not None:
        shapes |= part.curve.tensors
    for linear in [*spec.projections(layer), *spec.float_projections(layer)]:
        shapes[f"{linear.path}.weight"] = (linear.out_features, linear.in_features)
        if linear.bias:
            shapes[f"{linear.path}.bias"] = (linear.out_features,)
    return shapes


def gated_width_of(spec: DecoderSpec) -> int:
    """Width of whatever layers gate; 0 where it differs."""
    if spec.per_layer is not None or (spec.gates_attention and not spec.gates_by_head):
        return 0
    shared = [part for layer in range(spec.num_layers) if (part := spec.shared_expert(layer))]
    own = [layer.feed_forward for layer in spec.layers if layer.feed_forward]
    widths = {part.width for part in (*own, *shared)}
    widths |= {layer.space.inner for layer in spec.layers if layer.space}
    widths |= {layer.delta.value_width for layer in spec.layers if layer.delta}
    return widths.pop() if len(widths) == 1 else 0


def experts_of(spec: DecoderSpec) -> tuple[int, int]:
    """Experts of a layer and how many a token goes to; 0 where layers differ or have none."""
    layers = [part for layer in spec.layers if isinstance(part := layer.feed_forward, Experts)]
    shared = [each.as_experts() for part in layers if (each := part.shared) and each.gate]
    parts = {(part.count, part.top_k) for part in (*layers, *shared)}
    return parts.pop() if len(parts) == 1 else (0, 0)


def norms_of(spec: DecoderSpec, layer: int) -> dict[str, int]:
    """Paths of a layer's norms with their widths."""
    part, widths = spec.layers[layer].feed_forward, dict[str | None, int]()
    around = spec.norms_around(layer)
    if spec.layers[layer].mixes:
        widths |= dict.fromkeys((around.before, around.behind), spec.hidden_size)
    if part is not None:
        both = (around.before_feed_forward, around.behind_feed_forward)
        widths |= dict.fromkeys(both, spec.hidden_size)
        widths[spec.sub_norm(layer)] = part.width
    if isinstance(part, Experts) and part.beside is not None:
        widths |= dict.fromkeys(part.beside.paths, spec.hidden_size)
    beside: tuple[AltUp | Laurel | None, ...] = spec.altup, spec.laurel
    widths |= {each.norm: spec.hidden_size for each in beside if each}
    if spec.per_layer is not None:
        widths[spec.per_layer.out_norm] = spec.hidden_size
    width, matrices = spec.head_dim_of(layer), spec.matrices(layer)
    if matrices is not None:
        widths.update(matrices.norms)
    if spec.has_keys(layer):
        widths |= {
            spec.k_row_norm: spec.num_kv_heads_of(layer) * width,
            spec.k_norm: width,
        }
    if spec.attends(layer):
        widths |= {
            spec.q_row_norm: spec.num_heads_of(layer) * width,
            spec.q_norm: width,
            spec.attention_sub_norm: spec.num_heads_of(layer) * width,
        }
        if spec.latent is not None:
            widths.update(spec.latent.norms)
    return {path: width for path, width in widths.items() if path is not None}
