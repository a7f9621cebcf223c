"""How many bytes weights take in a bundle."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

from edgerun.errors import InputError
from edgerun_export.architectures import DecoderSpec
from edgerun_export.architectures.decoder.storage import HEAD_WEIGHT
from edgerun_export.architectures.decoder.streams import PerLayerInputs
from edgerun_export.quantize import block_layout
from edgerun_export.recipe import Recipe, TensorRecipe, vocabulary_block

_FLOAT_BYTES, _HALF_BYTES = 4, 2
_UNITS = {"": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9}
_SIZE = re.compile(r"(\d{1,15}(?:\.\d{0,15})?) ?(|KB|MB|GB)", re.IGNORECASE)
# More than what the graph and manifest.json say of a projection, and of all that is not one.
_GRAPH_BYTES, _GRAPH_BYTES_EACH = 16 << 10, 2560
_PAGE_BYTES, _LINE_BYTES = 4096, 64
_LARGE = 1 << 18  # weights, of which the codes or scales may be large tensors


def matrix_bytes(shape: tuple[int, ...], kind: TensorRecipe, scale_bytes: int) -> int:
    """Bytes of a matrix ``[N, K]`` with its scales, zero points and offsets."""
    rows, columns = shape
    if kind.weights == "fp32":
        return rows * columns * _FLOAT_BYTES
    blocks = -(-columns // kind.group_size)
    layout = block_layout(kind.weights)
    codes = kind.group_size * layout.bits // 8
    if layout.has_offsets:
        return rows * blocks * (codes + 2 * _HALF_BYTES)
    zeros = -(-blocks * layout.bits // 8) if layout.has_zeros else 0
    return rows * (blocks * (codes + scale_bytes) + zeros)


def scale_bytes(spec: DecoderSpec, recipe: Recipe, module: str) -> int:
    """Bytes of a scale of a projection in the file.

    Experts keep float32 whatever the recipe, but for one that all tokens go through as it is.
    """
    number, _, path = module.removeprefix("model.layers.").partition(".")
    layer = int(number)
    shared = {each.path for each in spec.shared_projections(layer).values()}
    is_plain = path in shared and spec.shared_gate(layer) is None
    return _FLOAT_BYTES if spec.is_expert(module) and not is_plain else recipe.scale_bytes


def weight_bytes(spec: DecoderSpec, recipe: Recipe) -> int:
    """Bytes of all weights but for the gaps between tensors."""
    shapes = spec.tensors()
    modules = {
        f"model.layers.{layer}.{projection.path}.weight": f"model.layers.{layer}.{projection.path}"
        for layer in range(spec.num_layers)
        for projection in spec.projections(layer)
    }
    body = sum(
        matrix_bytes(shape, recipe.tensor(modules[name]), scale_bytes(spec, recipe, modules[name]))
        if name in modules
        else math.prod(shape) * _FLOAT_BYTES
        for name, shape in shapes.items()
        if name not in (spec.embedding_weight, HEAD_WEIGHT, *_like_embedding(spec))
    )
    others = [shapes[name] for name in _like_embedding(spec)]
    tables = sum(_table_bytes(shape, recipe, recipe.embedding_weights) for shape in others)
    return body + _vocabulary_bytes(spec, recipe) + tables


def _like_embedding(spec: DecoderSpec) -> tuple[str, ...]:
    """Matrices of no layer, which are stored as the embedding is."""
    of_inputs = (PerLayerInputs.table, PerLayerInputs.projection) if spec.per_layer else ()
    return (*of_inputs, *spec.altup.begins, *spec.altup.ends) if spec.altup else of_inputs


def _vocabulary_bytes(spec: DecoderSpec, recipe: Recipe) -> int:
    """Embedding and head; one table where they are tied and alike."""
    formats = [recipe.embedding_weights, recipe.head_weights]
    if spec.tied:
        formats = sorted(set(formats))
    shape = spec.vocab_size, spec.hidden_size
    return sum(_table_bytes(shape, recipe, name) for name in formats)


def _table_bytes(shape: tuple[int, ...], recipe: Recipe, format_name: str) -> int:
    if format_name == "fp32":
        return math.prod(shape) * _FLOAT_BYTES
    block = vocabulary_block(shape[1], recipe.group_size)
    return matrix_bytes(shape, TensorRecipe(format_name, block), recipe.scale_bytes)


def parse_size(option: str, text: str) -> int:
    """Reads a number of bytes, such as ``60MB``; a MB is a million bytes.

    Raises:
        InputError: it is none.
    """
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise InputError(f"{option} {text[:40]!r} is no size; expected one such as 60MB or 1.5GB")
    return int(float(match[1]) * _UNITS[match[2].upper()])


def size_warnings(size: int, budget: int | None, whole_scales: Sequence[str]) -> list[str]:
    """What makes a bundle larger than it was reckoned with.

    Args:
        size: bytes of the bundle.
        budget: what it was to have at most, if there is such.
        whole_scales: scales that half precision cannot hold.
    """
    warnings = []
    if whole_scales:
        matrix = whole_scales[0].removesuffix(".scales")
        warnings.append(
            f"scales of {len(whole_scales)} tensors, first {matrix}, stay float32: half precision "
            "cannot hold them, or they are the source's own"
        )
    if budget is not None and size > budget:
        warnings.append(
            f"the bundle has {size:,} bytes, more than the {budget:,} of --budget, which counts on "
            f"scales in half precision; lower it by {size - budget:,} to come below"
        )
    return warnings


def overhead_bytes(spec: DecoderSpec) -> int:
    """More than what graph, manifest and gaps between tensors take in the portable profile."""
    total = _GRAPH_BYTES
    for layer in range(spec.num_layers):
        has_experts = spec.router(layer) is not None
        for projection in spec.projections(layer):
            size = projection.out_features * projection.in_features
            # A large tensor begins on a page, as does every expert.
            gaps = 2 * _PAGE_BYTES if size >= _LARGE else 2 * _LINE_BYTES
            total += _GRAPH_BYTES_EACH + gaps + (_PAGE_BYTES // 2 if has_experts else 0)
    return total
